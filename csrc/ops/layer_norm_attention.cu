// layer_norm_attention: q = n W^T + b, n = (x - mean) / sqrt(var + eps) * gain + shift, one kernel with
// out = softmax(scale q k^T) v for few rows over keys and values of their own (sm_90a)
// x [A, K], k, v [N, H, d], out [A, H d] bf16, rows of k, v and out *_stride elements apart, the heads of
// a row side by side; W [H d, K] bf16, packed; b [H d]; gain, shift [K] float32 or null; keys j with
// prefix_length[0] <= j < prefix_rows are hidden (null: none) and never read
// x and W come as tile maps of 64 columns by 48 rows; kept as in attention_heads.cu
// float32 sums, norm, softmax; x + x (gain - 1), q and probabilities are rounded to bf16
// needs A <= 48, K = 1536, d = 48; grid of H clusters of four blocks, 256 threads; no workspace
// bound: memory, 2 K H d bytes
//
// A cluster has a head: its blocks split K, push each other the sums of a quarter of the rows of x, and
// each finishes and attends with its quarter. Weights, keys and values are under way before pdl_wait().
#include "../common/heads.cuh"
#include "../common/streamed_product_sm90.cuh"

namespace flashrt {

// The product's shape, with other things received: of kOwnTokens rows and four vectors, all sums.
struct NormAttentionShape : StreamedShape<48, 6, 4, 6, true> {
  using Attention = heads::Shape<48, 1, 8>;
  static constexpr int kOwnTokens = kMaxTokens / kSplit, kSlots = kOwnTokens + 4;
  static constexpr int kReceived = kTotals + kSquareParts * kTokens * 4;
  static constexpr int kReceivedSquares = kReceived + kSplit * kSlots * kRows * 4;
  static constexpr int kQueries = kReceivedSquares + kSplit * kOwnTokens * 8;
  static constexpr int kAttention = kQueries + heads::kRows * Attention::kPitch * 2;
  static constexpr int kBarriers = kAttention + Attention::kSharedBytes;
  static constexpr int kSharedBytes = (kBarriers + (1 + kStages) * 8 + 15) / 16 * 16;
  static_assert(kReceived % 16 == 0 && kQueries % 16 == 0 && kAttention % 16 == 0, "aligned");
  static_assert(kOwnTokens <= heads::kRows && Attention::kDim == kRows, "a tile of queries a block");
};
static_assert(NormAttentionShape::kSharedBytes == 121664, "as the launcher has it");

#ifdef FLASHRT_SM90A

// Nothing of the base's way to finish is used.
struct NoFinish {
  static constexpr bool kNeighbours = true, kFetches = false;
  __device__ __forceinline__ static int low_row(int item) { return item * 4; }
  __device__ __forceinline__ static int high_row(int item) { return item * 4 + 2; }
};

class NormAttention : StreamedProduct<NormAttentionShape, NoFinish> {
  using S = NormAttentionShape;
  using Base = StreamedProduct<S, NoFinish>;
  static constexpr int kGroups = S::kRows / 4;  // of four columns of a head

 public:
  __device__ __forceinline__ NormAttention(const FewRowsInput<bf16>& input, NoFinish& op)
      : Base(input, op) {
    own_ = (in_.tokens + S::kSplit - 1) / S::kSplit;
  }

  __device__ __forceinline__ void run(heads::Args attention, const bf16* bias, bf16* out, int out_stride,
                                      int kept) {
    pdl_trigger();
    if (thread_ == 0) {
      const uint32_t rows = count(split_);
      expect_bytes(barrier(Base::kPushed), S::kSplit * ((rows + 4) * S::kRows * 4 + rows * 8));
      begin();
    }
    __syncwarp();
    cluster_arrive();
    attention.rows = first(split_) + count(split_);
    heads::Heads<S::Attention> attend(attention, shared_ + S::kAttention, first(split_), tile_, 0);
    if (kept) attend.begin();
    fetch_centred();
    const int group = thread_ % kGroups;
    float4 offset = {0.0f, 0.0f, 0.0f, 0.0f};
    if (bias) {
      const uint2 v = *reinterpret_cast<const uint2*>(bias + tile_ * S::kRows + group * 4);
      const float2 low = unpack2(v.x), high = unpack2(v.y);
      offset = {low.x, low.y, high.x, high.y};
    }
    __syncthreads();  // the barriers and what conditions x
    cluster_wait();
    pdl_wait();
    if (thread_ == 0) fetch_first_tokens();
    if (!kept) attend.begin();
    multiply();
    __syncthreads();
    scatter_rows();
    wait_bytes(barrier(Base::kPushed));
    finish_queries(thread_ / kGroups, group, offset);
    __syncthreads();
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

  // The sums of every row, and of the vectors of the norm, to the block that finishes it. A warp pushes
  // to one neighbour; blocks begin with different ones.
  __device__ __forceinline__ void scatter_rows() const {
    const int rank = (warp_ + split_) % S::kSplit, rows = count(rank), begin = first(rank);
    const int start = warp_ / S::kSplit * 32 + lane_;
    constexpr int kStride = S::kThreads / S::kSplit;
    const uint32_t base = remote_address(shared_, rank), pushed = base + S::kBarriers + Base::kPushed * 8;
    for (int i = start; i < (rows + 4) * kGroups; i += kStride) {
      const int row = i / kGroups, group = i % kGroups;
      const int token = row < rows ? begin + row : S::kMaxTokens + row - rows;
      const int slot = row < rows ? row : S::kOwnTokens + row - rows;
      push(base + S::kReceived + ((split_ * S::kSlots + slot) * kGroups + group) * 16, pushed,
           sum_item(token, group));
    }
    for (int i = start; i < rows; i += kStride) {
      push(base + S::kReceivedSquares + (split_ * S::kOwnTokens + i) * 8, pushed,
           float2{sum_squares(begin + i), sum_totals(begin + i)});
    }
  }

  __device__ __forceinline__ float4 received(int slot, int group) const {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < S::kSplit; ++from) {
      const int at = (from * S::kSlots + slot) * kGroups + group;
      const float4 v = reinterpret_cast<const float4*>(shared_ + S::kReceived)[at];
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return sum;
  }
  __device__ __forceinline__ float4 vector(int slot, int group) const {
    const float4 a = received(slot, group), b = received(slot + 1, group);
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }

  // Four columns of a row of queries; rows behind the last are zero.
  __device__ __forceinline__ void finish_queries(int row, int group, const float4& offset) const {
    if (row >= heads::kRows) return;
    uint2 q = {0u, 0u};
    if (row < count(split_)) {
      float2 sum = {0.0f, 0.0f};
#pragma unroll
      for (int from = 0; from < S::kSplit; ++from) {
        const float2 v =
            reinterpret_cast<const float2*>(shared_ + S::kReceivedSquares)[from * S::kOwnTokens + row];
        sum = {sum.x + v.x, sum.y + v.y};
      }
      const float mean = sum.y * (1.0f / S::kInner);
      const float variance = fmaxf(sum.x * (1.0f / S::kInner) - mean * mean, 0.0f);
      const float r = rsqrtf(variance + in_.eps);
      const float4 y = received(row, group), b = vector(S::kOwnTokens, group);
      const float4 g = vector(S::kOwnTokens + 2, group);
      q = {pack2((y.x - mean * g.x) * r + b.x + offset.x, (y.y - mean * g.y) * r + b.y + offset.y),
           pack2((y.z - mean * g.z) * r + b.z + offset.z, (y.w - mean * g.w) * r + b.w + offset.w)};
    }
    *reinterpret_cast<uint2*>(queries() + row * S::Attention::kPitch + group * 4) = q;
  }

  int own_;  // rows of x a block, but for the last
};

#endif

}  // namespace flashrt

#ifdef FLASHRT_SM90A
extern "C" __global__ void __launch_bounds__(256, 1)
    layer_norm_attention_k1536_d48_bf16_sm90(
        const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,
        const float* gain, const float* shift, const flashrt::bf16* bias, const flashrt::bf16* k,
        const flashrt::bf16* v, const int* prefix_length, flashrt::bf16* out, int tokens, int keys,
        int prefix_rows, int kept, int k_stride, int v_stride, int out_stride, float eps, float scale) {
  using namespace flashrt;
  NoFinish op;
  NormAttention({nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x}, op)
      .run({nullptr, k, v, prefix_length, tokens, keys, prefix_rows, 0, k_stride, v_stride, 1, 0,
            scale * 1.4426950408889634f},
           bias, out, out_stride, kept);
}
#endif
