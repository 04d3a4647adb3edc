// layer_norm_attention: q = n W^T + b, n = (x - mean) / sqrt(var + eps) * gain + shift, one kernel with
// out = softmax(scale q k^T) v for few rows (sm_90a): over keys and values that are there, or over the
// rows themselves (_self), then W makes q|k|v
// x [A, K], k, v [N, H, d], out [A, H d] bf16, rows of k, v and out *_stride elements apart, the heads of
// a row side by side; W [H d, K] or [3 H d, K] bf16, packed; b as many; gain, shift [K] float32 or null;
// keys j with prefix_length[0] <= j < prefix_rows are hidden (null: none) and never read
// x and W come as tile maps of 64 columns by 48 rows; kept as in attention_heads.cu
// float32 sums, norm, softmax; x + x (gain - 1), q, k, v and probabilities are rounded to bf16
// needs A <= 48, K = 1536, d = 48; grid of H clusters of four blocks, 256 threads; no workspace
// bound: memory, the bytes of W
//
// A cluster has a head: its blocks split K, push each other the sums of a quarter of the rows of x, and
// each finishes and attends with its quarter. Weights, and keys and values that are there, are under way
// before pdl_wait(); keys and values that a block makes are pushed to all, where the attention reads them.

#include "../common/heads.cuh"
#include "../common/streamed_product_sm90.cuh"

namespace flashrt {

// The product's shape, with other things received: from each of the others, its sums of kOwnTokens rows
// and of the two vectors of the norm.
// kTensors: of W, 1 (q) or 3 (q, k and v).
template <int kTensors_, int kStages_, class Attention_>
struct NormAttentionShape : StreamedShape<48 * kTensors_, 6, 4, kStages_, true, 48> {
  using Base = StreamedShape<48 * kTensors_, 6, 4, kStages_, true, 48>;
  using Attention = Attention_;
  using Base::kMaxTokens, Base::kRows, Base::kSplit, Base::kSquareParts, Base::kStages, Base::kTokens;
  using Base::kTotals;
  static constexpr bool kSelf = kTensors_ == 3;
  static constexpr int kDim = 48, kBoxes = kTensors_;
  // Heads lie 48 rows apart in each of the tensors.
  __device__ __forceinline__ static int box_row(int tile, int box) {
    return (box * (gridDim.x / kSplit) + tile) * kDim;
  }
  static constexpr int kOwnTokens = kMaxTokens / kSplit, kSlots = kOwnTokens + 2;
  static constexpr int kOthers = kSplit - 1;
  static constexpr int kReceived = kTotals + kSquareParts * kTokens * 4;
  static constexpr int kReceivedSquares = kReceived + kOthers * kSlots * kRows * 4;
  static constexpr int kQueries = kReceivedSquares + kOthers * kOwnTokens * 8;
  static constexpr int kBias = kQueries + heads::kRows * Attention::kPitch * 2;
  static constexpr int kAttention = kBias + kRows * 2;
  static constexpr int kBarriers = kAttention + Attention::kSharedBytes;
  static constexpr int kSharedBytes = (kBarriers + (2 + kStages) * 8 + 15) / 16 * 16;
  static_assert(kReceived % 16 == 0 && kQueries % 16 == 0 && kAttention % 16 == 0, "aligned");
  static_assert(kOwnTokens <= heads::kRows && Attention::kDim == kDim, "a tile of queries a block");
  static_assert(!kSelf || kMaxTokens <= Attention::kWarps * heads::kKeys, "a tile of keys a warp");
};

using ContextAttention = NormAttentionShape<1, 6, heads::Shape<48, 1, 3>>;
static_assert(ContextAttention::kSharedBytes == 101536, "as the launcher has it");
using SelfAttention = NormAttentionShape<3, 2, heads::Shape<48, 1, 3>>;
static_assert(SelfAttention::kSharedBytes == 107328, "as the launcher has it");

#ifdef FLASHRT_SM90A

// Nothing of the base's way to finish is used.
struct NoFinish {
  static constexpr bool kNeighbours = true, kFetches = false;
  __device__ __forceinline__ static int low_row(int item) { return item * 4; }
  __device__ __forceinline__ static int high_row(int item) { return item * 4 + 2; }
};

template <class S>
class NormAttention : StreamedProduct<S, NoFinish> {
  using Base = StreamedProduct<S, NoFinish>;
  using Base::barrier, Base::in_, Base::lane_, Base::shared_, Base::split_, Base::thread_, Base::tile_;
  using Base::warp_, Base::kPushed;
  using Attention = typename S::Attention;
  static constexpr int kGroups = S::kRows / 4;  // of four columns of a head's tensors
  static constexpr int kGathered = 1 + S::kStages;  // barrier of keys and values

 public:
  __device__ __forceinline__ NormAttention(const FewRowsInput<bf16>& input, NoFinish& op)
      : Base(input, op) {
    own_ = (in_.tokens + S::kSplit - 1) / S::kSplit;
  }

  __device__ __forceinline__ void run(heads::Args attention, const bf16* bias, bf16* out, int out_stride,
                                      int kept) {
    pdl_trigger();
    const typename Base::Centred condition = this->load_centred();
    const uint2 offsets = load_bias(bias);
    if (thread_ == 0) {
      const uint32_t rows = count(split_);
      expect_bytes(barrier(kPushed), S::kOthers * ((rows + 2) * S::kRows * 4 + rows * 8));
      if constexpr (S::kSelf) expect_bytes(barrier(kGathered), in_.tokens * 2 * S::kDim * 2);
      this->begin();
    }
    if constexpr (S::kSelf) clear_keys();
    __syncwarp();
    cluster_arrive_relaxed();
    attention.rows = first(split_) + count(split_);
    heads::Heads<Attention> attend(attention, shared_ + S::kAttention, first(split_), tile_, 0);
    const bool attends = warp_ < Attention::kWarps;
    if (!S::kSelf && kept && attends) attend.begin();
    this->leave_centred(condition);
    leave_bias(offsets);
    __syncthreads();  // the barriers and what conditions x
    cluster_wait();
    pdl_wait();
    if (thread_ == 0) this->fetch_first_tokens();
    if (!S::kSelf && !kept && attends) attend.begin();
    this->multiply();
    __syncthreads();
    scatter_rows();
    wait_bytes(barrier(kPushed));
    finish_rows();
    __syncthreads();
    if (!attends) {
      if (S::kSelf) wait_bytes(barrier(kGathered));  // what a block was sent has come before it leaves
      return;
    }
    if (S::kSelf) {
      attend.take(in_.tokens);
      wait_bytes(barrier(kGathered));
    }
    attend.load_queries(queries());
    attend.run();
    attend.join_lanes();
    attend.store(out, out_stride, 1.0f);
  }

 private:
  // The rows of x that a block finishes.
  __device__ __forceinline__ int first(int rank) const { return min(rank * own_, in_.tokens); }
  __device__ __forceinline__ int count(int rank) const { return first(rank + 1) - first(rank); }
  __device__ __forceinline__ bf16* queries() const {
    return reinterpret_cast<bf16*>(shared_ + S::kQueries);
  }

  // Keys and values of rows that are not there, to which nobody pushes.
  __device__ __forceinline__ void clear_keys() const {
    constexpr int kPieces = S::kDim / 8;
    for (int i = thread_; i < (S::kMaxTokens - in_.tokens) * 2 * kPieces; i += S::kThreads) {
      const int token = in_.tokens + i / (2 * kPieces), which = i / kPieces % 2, piece = i % kPieces;
      const int place = S::kAttention + heads::Heads<Attention>::place(token, which) + piece * 16;
      *reinterpret_cast<uint4*>(shared_ + place) = {0u, 0u, 0u, 0u};
    }
  }

  __device__ __forceinline__ uint2 load_bias(const bf16* bias) const {
    if (!bias || thread_ >= kGroups) return {0u, 0u};
    const int row = S::box_row(tile_, thread_ / (S::kDim / 4)) + thread_ % (S::kDim / 4) * 4;
    return *reinterpret_cast<const uint2*>(bias + row);
  }
  __device__ __forceinline__ void leave_bias(const uint2& v) const {
    if (thread_ < kGroups) reinterpret_cast<uint2*>(shared_ + S::kBias)[thread_] = v;
  }

  // A slot: a row that a block finishes, or behind those shift W^T and gain W^T, as this block sums it.
  __device__ __forceinline__ float4 slot_item(int rank, int slot, int group) const {
    if (slot < S::kOwnTokens) return this->sum_item(first(rank) + slot, group);
    const int token = S::kMaxTokens + (slot - S::kOwnTokens) * 2;
    const float4 a = this->sum_item(token, group), b = this->sum_item(token + 1, group);
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }

  // Every slot to the block that finishes it. A warp pushes to one neighbour; blocks begin with different
  // ones.
  __device__ __forceinline__ void scatter_rows() const {
    const int rank = (warp_ + split_) % S::kSplit, rows = count(rank);
    if (rank == static_cast<int>(split_)) return;
    const int start = warp_ / S::kSplit * 32 + lane_, from = split_ - (split_ > rank);
    constexpr int kStride = S::kThreads / S::kSplit;
    const uint32_t base = remote_address(shared_, rank), pushed = base + S::kBarriers + kPushed * 8;
    for (int i = start; i < (rows + 2) * kGroups; i += kStride) {
      const int row = i / kGroups, group = i % kGroups;
      const int slot = row < rows ? row : S::kOwnTokens + row - rows;
      push(base + S::kReceived + ((from * S::kSlots + slot) * kGroups + group) * 16, pushed,
           slot_item(rank, slot, group));
    }
    for (int i = start; i < rows; i += kStride) {
      const int token = first(rank) + i;
      push(base + S::kReceivedSquares + (from * S::kOwnTokens + i) * 8, pushed,
           float2{this->sum_squares(token), this->sum_totals(token)});
    }
  }

  // Sums over the blocks, in their order.
  __device__ __forceinline__ float4 received(int slot, int group) const {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int block = 0; block < S::kSplit; ++block) {
      const int at = ((block - (block > split_)) * S::kSlots + slot) * kGroups + group;
      const float4 v = block == split_ ? slot_item(split_, slot, group)
                                       : reinterpret_cast<const float4*>(shared_ + S::kReceived)[at];
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return sum;
  }
  __device__ __forceinline__ float2 own_moments(int row) const {
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int block = 0; block < S::kSplit; ++block) {
      const int at = (block - (block > split_)) * S::kOwnTokens + row, token = first(split_) + row;
      const float2 v = block == split_
                           ? float2{this->sum_squares(token), this->sum_totals(token)}
                           : reinterpret_cast<const float2*>(shared_ + S::kReceivedSquares)[at];
      sum = {sum.x + v.x, sum.y + v.y};
    }
    const float mean = sum.y * (1.0f / S::kInner);
    const float variance = fmaxf(sum.x * (1.0f / S::kInner) - mean * mean, 0.0f);
    return {mean, rsqrtf(variance + in_.eps)};
  }

  // A thread has four columns of q, k or v, and some of the rows; queries behind the last row are zero.
  __device__ __forceinline__ void finish_rows() const {
    constexpr int kStride = S::kThreads / kGroups;
    const int rows = count(split_), group = thread_ % kGroups;
    if (thread_ >= kStride * kGroups) return;
    const int tensor = group / (S::kDim / 4), column = group % (S::kDim / 4) * 4;
    const float4 g = received(S::kOwnTokens + 1, group);
    float4 b = received(S::kOwnTokens, group);
    const uint2 bias = reinterpret_cast<const uint2*>(shared_ + S::kBias)[group];
    const float2 low = unpack2(bias.x), high = unpack2(bias.y);
    b = {b.x + low.x, b.y + low.y, b.z + high.x, b.w + high.y};
#pragma unroll 1
    for (int row = thread_ / kGroups; row < (tensor == 0 ? heads::kRows : rows); row += kStride) {
      uint2 result = {0u, 0u};
      if (row < rows) {
        const float2 m = own_moments(row);
        const float4 y = received(row, group);
        result = {pack2((y.x - m.x * g.x) * m.y + b.x, (y.y - m.x * g.y) * m.y + b.y),
                  pack2((y.z - m.x * g.z) * m.y + b.z, (y.w - m.x * g.w) * m.y + b.w)};
      }
      if (tensor == 0) {
        *reinterpret_cast<uint2*>(queries() + row * Attention::kPitch + column) = result;
      } else {
        gather(first(split_) + row, tensor - 1, column, result);
      }
    }
  }

  // Four numbers of a key or value into every block of the cluster.
  __device__ __forceinline__ void gather(int token, int which, int column, const uint2& bits) const {
    const int place = S::kAttention + heads::Heads<Attention>::place(token, which) + column * 2;
    const float2 v = {__uint_as_float(bits.x), __uint_as_float(bits.y)};
#pragma unroll
    for (int rank = 0; rank < S::kSplit; ++rank) {
      const uint32_t base = remote_address(shared_, rank);
      push(base + place, base + S::kBarriers + kGathered * 8, v);
    }
  }

  int own_;  // rows of x a block, but for the last
};

#endif

}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_NORM_ATTENTION(name, Shape)                                                        \
  extern "C" __global__ void __launch_bounds__(256, 2) name(                                       \
      const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,           \
      const float* gain, const float* shift, const flashrt::bf16* bias, const flashrt::bf16* k,    \
      const flashrt::bf16* v, const int* prefix_length, flashrt::bf16* out, int tokens, int keys,  \
      int prefix_rows, int kept, int k_stride, int v_stride, int out_stride, float eps,            \
      float scale) {                                                                               \
    flashrt::NoFinish op;                                                                          \
    flashrt::NormAttention<flashrt::Shape>(                                                        \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x}, op)                 \
        .run({nullptr, k, v, prefix_length, tokens, keys, prefix_rows, 0, k_stride, v_stride, 1,   \
              0, scale * 1.4426950408889634f},                                                     \
             bias, out, out_stride, kept);                                                         \
  }

FLASHRT_NORM_ATTENTION(layer_norm_attention_k1536_d48_bf16_sm90, ContextAttention)
FLASHRT_NORM_ATTENTION(layer_norm_attention_self_k1536_d48_bf16_sm90, SelfAttention)
#endif
