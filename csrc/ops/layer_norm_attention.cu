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

#include "../common/few_keys.cuh"
#include "../common/heads.cuh"
#include "../common/pushed_product_sm90.cuh"

namespace flashrt {

constexpr int kHead = 48;

// Queries over keys that are there: warpgroups take steps of K in turn.
struct ContextAttention : PushedShape<kHead, 6, 4, 3, false> {
  using Attention = heads::Shape<kHead, 1, 3>;
  static constexpr bool kSelf = false;
  static constexpr int kQuads = 1;  // groups of four columns of a row that a thread finishes
  // A head's rows of W, for both warpgroups.
  static constexpr int kBoxes = 1;
  __device__ __forceinline__ static int box_row(int tile, int, int) { return tile * kHead; }
  static constexpr int kHeadPitch = Attention::kPitch;  // elements of a row of queries
  static constexpr int kBias = kTilesEnd, kReceived = kBias + kRows * 2;
  static constexpr int kQueries = kReceived + kReceivedBytes;
  static constexpr int kAttention = kQueries + heads::kRows * kHeadPitch * 2;
  static constexpr int kBarriers = kAttention + Attention::kSharedBytes;
  static constexpr int kSharedBytes = (kBarriers + kCounted * 8 + 15) / 16 * 16;
  static_assert(kOwnTokens <= heads::kRows && kReceived % 16 == 0, "a tile of queries a block");
};
static_assert(ContextAttention::kSharedBytes == 116464, "as the launcher has it");

// Queries, keys and values: a warpgroup has q and half of k, or the rest, in boxes of half a tensor of a head.
// What lies over tiles: sums over those that are fetched once; queries, keys and values over the others.
struct SelfAttention : PushedShape<3 * kHead, 6, 4, 4, true> {
  static constexpr bool kSelf = true;
  static constexpr int kQuads = 2;
  static constexpr int kBoxes = 3, kBoxRows = kHead / 2;
  __device__ __forceinline__ static int box_row(int tile, int group, int box) {
    const int half = group * kBoxes + box;
    return (half / 2 * (gridDim.x / kSplit) + tile) * kHead + half % 2 * kBoxRows;
  }
  static constexpr int kHeadPitch = kHead + 8;  // elements; eight rows of an ldmatrix lie in different banks
  static constexpr int kReceived = kOverStart;
  static constexpr int kKeys = 0, kHeadBytes = kMaxTokens * kHeadPitch * 2, kValues = kKeys + kHeadBytes;
  static constexpr int kQueries = kValues + kHeadBytes, kQueriesEnd = kQueries + 16 * kHeadPitch * 2;
  static_assert(kQueriesEnd <= kOverStart && kOwnTokens <= 16, "over tiles, a tile of queries a block");
  static constexpr int kBias = kTilesEnd, kBarriers = kBias + kRows * 2;
  static constexpr int kSharedBytes = (kBarriers + (1 + kCounted) * 8 + 15) / 16 * 16;
};
static_assert(SelfAttention::kSharedBytes == 113344, "as the launcher has it");

#ifdef FLASHRT_SM90A

template <class S>
class NormAttention : PushedProduct<S> {
  using Base = PushedProduct<S>;
  using Base::barrier, Base::in_, Base::shared_, Base::split_, Base::thread_, Base::tile_, Base::kPushed;
  static constexpr int kGroups = S::kRows / 4;  // of four columns of a head's tensors
  static constexpr int kGathered = S::kCounted;  // barrier of keys and values

 public:
  __device__ __forceinline__ NormAttention(const FewRowsInput<bf16>& input, NoFinish& op)
      : Base(input, op) {}

  __device__ __forceinline__ void run(heads::Args attention, const bf16* bias, bf16* out, int out_stride,
                                      int kept) {
    pdl_trigger();
    const typename Base::Centred condition = this->load_centred();
    const uint2 offsets = load_bias(bias);
    if (thread_ == 0) {
      if constexpr (S::kSelf) expect_bytes(barrier(kGathered), in_.tokens * 2 * kHead * 2);
      this->begin();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    if constexpr (S::kSelf) {
      prepare(condition, offsets);
      make_rows();
      attend_each_other(attention.scale_log2, out, out_stride);
    } else {
      using Attention = typename S::Attention;
      attention.rows = this->first(split_) + this->count(split_);
      heads::Heads<Attention> attend(attention, shared_ + S::kAttention, this->first(split_), tile_, 0);
      const bool attends = thread_ < 32 * Attention::kWarps;
      if (kept && attends) attend.begin();
      prepare(condition, offsets);
      if (!kept && attends) attend.begin();
      make_rows();
      if (!attends) return;
      attend.load_queries(queries());
      attend.run();
      attend.join_lanes();
      attend.store(out, out_stride, 1.0f);
    }
  }

 private:
  __device__ __forceinline__ bf16* queries() const {
    return reinterpret_cast<bf16*>(shared_ + S::kQueries);
  }

  __device__ __forceinline__ uint2 load_bias(const bf16* bias) const {
    if (!bias || thread_ >= kGroups) return {0u, 0u};
    const int tensor = thread_ / (kHead / 4), column = thread_ % (kHead / 4) * 4;
    return *reinterpret_cast<const uint2*>(bias + (tensor * (gridDim.x / S::kSplit) + tile_) * kHead + column);
  }

  // All that is known before the kernels in front have come to their end; then x is on its way.
  __device__ __forceinline__ void prepare(const typename Base::Centred& condition, const uint2& bias) const {
    this->leave_centred(condition);
    if (thread_ < kGroups) reinterpret_cast<uint2*>(shared_ + S::kBias)[thread_] = bias;
    __syncthreads();  // the barriers and what conditions x
    cluster_wait();
    pdl_wait();
    if (thread_ == 0) this->fetch_tokens();
  }

  // The block's queries and its keys and values, these to all blocks.
  __device__ __forceinline__ void make_rows() {
    typename Base::Sums sums;
    this->multiply(sums);
    if constexpr (S::kOver) {
      cluster_wait();  // where sums go, tiles are used
      cluster_arrive_relaxed();
    }
    this->push_sums(sums);
    this->push_moments(sums);
    wait_bytes(barrier(kPushed));
    if constexpr (S::kOver) cluster_wait();  // all tiles are used
    finish_rows();
    if constexpr (S::kSelf) clear_values();
    __syncthreads();
  }

  // A thread has some columns of a row.
  __device__ __forceinline__ void finish_rows() const {
    constexpr int kPieces = kGroups / S::kQuads;
    static_assert(S::kOwnTokens * kPieces <= S::kThreads, "a piece a thread");
    const int row = thread_ % S::kOwnTokens, piece = thread_ / S::kOwnTokens;
    if (piece >= kPieces || row >= this->count(split_)) return;
    const float2 m = this->received_moments(row);
    uint32_t bits[2 * S::kQuads];
#pragma unroll
    for (int quad = 0; quad < S::kQuads; ++quad) {
      const int group = piece * S::kQuads + quad;
      const float4 y = this->received(row, group * 4), g = this->received_gain(group * 4);
      const float4 b = this->received_shift(group * 4);
      const uint2 bias = reinterpret_cast<const uint2*>(shared_ + S::kBias)[group];
      const float2 low = unpack2(bias.x), high = unpack2(bias.y);
      bits[2 * quad] = pack2((y.x - m.x * g.x) * m.y + (b.x + low.x), (y.y - m.x * g.y) * m.y + (b.y + low.y));
      bits[2 * quad + 1] =
          pack2((y.z - m.x * g.z) * m.y + (b.z + high.x), (y.w - m.x * g.w) * m.y + (b.w + high.y));
    }
    const int column = piece * S::kQuads * 4 % kHead;
    if constexpr (S::kSelf) {
      const int tensor = piece * S::kQuads * 4 / kHead;
      if (tensor > 0) {
        gather(tensor == 1 ? S::kKeys : S::kValues, this->first(split_) + row, column, bits);
      } else {
        *reinterpret_cast<uint4*>(queries() + row * S::kHeadPitch + column) = {bits[0], bits[1], bits[2],
                                                                              bits[3]};
      }
    } else {
      *reinterpret_cast<uint2*>(queries() + row * S::kHeadPitch + column) = {bits[0], bits[1]};
    }
  }

  // Eight numbers of a key or value into every block of the cluster.
  __device__ __forceinline__ void gather(int tensor, int token, int column, const uint32_t (&bits)[4]) const {
    const int place = tensor + (token * S::kHeadPitch + column) * 2;
    const float4 v = {__uint_as_float(bits[0]), __uint_as_float(bits[1]), __uint_as_float(bits[2]),
                      __uint_as_float(bits[3])};
#pragma unroll
    for (int rank = 0; rank < S::kSplit; ++rank) {
      const uint32_t base = remote_address(shared_, rank);
      push(base + place, base + S::kBarriers + kGathered * 8, v);
    }
  }

  // Values of rows that are not there, to which nobody pushes.
  __device__ __forceinline__ void clear_values() const {
    constexpr int kPieces = kHead / 8;
    for (int i = thread_; i < (S::kMaxTokens - in_.tokens) * kPieces; i += S::kThreads) {
      const int token = in_.tokens + i / kPieces, piece = i % kPieces;
      clear_shared16(shared_address(shared_ + S::kValues + token * S::kHeadPitch * 2 + piece * 16));
    }
  }

  // The rows over each other, a third of the columns a warp.
  __device__ __forceinline__ void attend_each_other(float scale_log2, bf16* out, int out_stride) const {
    constexpr int kColumns = 16;
    const int column = thread_ / 32 * kColumns;
    if (column >= kHead) return;
    wait_bytes(barrier(kGathered));
    FewKeys<kHead, S::kMaxTokens, kColumns, S::kHeadPitch> attend;
    attend.run(queries(), reinterpret_cast<const bf16*>(shared_ + S::kKeys),
               reinterpret_cast<const bf16*>(shared_ + S::kValues), in_.tokens, scale_log2, column);
    attend.store(out + static_cast<size_t>(this->first(split_)) * out_stride + tile_ * kHead + column,
                 out_stride, this->count(split_));
  }
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
