// layer_norm_attention: q = n W^T + b, n = (x - mean) / sqrt(var + eps) * gain + shift, one kernel with
// out = softmax(scale q k^T) v for few rows (sm_90a): over keys and values that are there, or over the
// rows themselves (_self), then W makes q|k|v
// x [A, K], k, v [N, H, d], out [A, H d] bf16, rows of k, v and out *_stride elements apart, the heads of
// a row side by side; W [H d, K] or [3 H d, K] bf16, packed; b as many; gain, shift [K] float32 or null;
// or, with _self, W E4M3 with weight_scale [1], and n quantised with x_scale [1] float32: rows of x are
// x_stride elements apart then
// moments (row_moments.cuh) of x, or null: then the blocks take them of x themselves
// keys j with prefix_length[0] <= j < prefix_rows are hidden (null: none) and never read
// W and, in bf16, x come as tile maps of 128 bytes by 48 rows; kept as in attention_heads.cu
// float32 sums, norm, softmax; x + x (gain - 1), q, k, v and probabilities are rounded to bf16, and so is
// what a block adds to the sums of E4M3 products that another finishes
// needs A <= 48, K = 1536, d = 48; grid of H clusters of four blocks, 256 threads; no workspace
// bound: memory, the bytes of W
//
// A cluster has a head: its blocks split K, push each other the sums of a quarter of the rows of x, and
// each finishes and attends with its quarter (pushed_rows.cuh). Weights, and keys and values that are
// there, are under way before pdl_wait(); keys and values that a block makes are pushed to all, where the
// attention reads them.

#include "../common/few_keys.cuh"
#include "../common/heads.cuh"
#include "../common/normed_pushed_product_sm90.cuh"
#include "../common/pushed_product_sm90.cuh"

namespace flashrt {

constexpr int kHead = 48;

template <class Weight, int kTensors>
using NormAttentionBase = std::conditional_t<std::is_same_v<Weight, e4m3>,
                                             NormedPushedShape<kTensors, kHead, 3, 4>,
                                             PushedShape<kTensors, kHead, 6, 4>>;
// kTensors of a head: queries, or these and keys and values, each of kHead rows of W.
template <class Weight, int kTensors_>
struct NormAttentionShape : NormAttentionBase<Weight, kTensors_> {
  using Base = NormAttentionBase<Weight, kTensors_>;
  static constexpr int kTensors = kTensors_;
  __device__ __forceinline__ static int box_row(int tile, int tensor) {
    return (tensor * (gridDim.x / Base::kSplit) + tile) * kHead;
  }
  static constexpr int kHeadPitch = kHead + 8;  // elements; eight rows of an ldmatrix lie in different banks
  static constexpr int kQueryBytes = heads::kRows * kHeadPitch * 2;
  static constexpr int kKeyBytes = Base::kMaxTokens * kHeadPitch * 2;
  static constexpr int kBias = Base::kPushedEnd, kBiasEnd = kBias + Base::kRows * 2;
  static_assert(Base::kOwnTokens <= heads::kRows, "a tile of queries a block");
};

struct ContextAttention : NormAttentionShape<bf16, 1> {
  using Attention = heads::Shape<kHead, 1, 3>;
  static constexpr bool kSelf = false;
  static constexpr int kQueries = kBiasEnd, kAttention = kQueries + kQueryBytes;
  static constexpr int kBarriers = kAttention + Attention::kSharedBytes;
  static constexpr int kSharedBytes = (kBarriers + kCounted * 8 + 15) / 16 * 16;
  static_assert(kHeadPitch == Attention::kPitch && kQueries % 16 == 0, "as the attention wants them");
};
static_assert(ContextAttention::kSharedBytes == 104864, "as the launcher has it");

template <class Weight>
struct SelfAttention : NormAttentionShape<Weight, 3> {
  using Base = NormAttentionShape<Weight, 3>;
  static constexpr bool kSelf = true;
  static constexpr int kQueries = Base::kRoom, kKeys = kQueries + Base::kQueryBytes;
  static constexpr int kValues = kKeys + Base::kKeyBytes;
  static_assert(kValues + Base::kKeyBytes <= Base::kRoomEnd, "over used tiles");
  static constexpr int kBarriers = Base::kBiasEnd;
  static constexpr int kSharedBytes = (kBarriers + (1 + Base::kCounted) * 8 + 15) / 16 * 16;
};
static_assert(SelfAttention<bf16>::kSharedBytes == 113408, "as the launcher has it");
static_assert(SelfAttention<e4m3>::kSharedBytes == 92880, "as the launcher has it");

#ifdef FLASHRT_SM90A

template <class S>
using NormProduct =
    std::conditional_t<std::is_same_v<typename S::Weight, e4m3>, NormedPushedProduct<S>, PushedProduct<S>>;

template <class S>
class NormAttention : NormProduct<S> {
  using Base = NormProduct<S>;
  using Base::barrier, Base::in_, Base::shared_, Base::split_, Base::thread_, Base::tile_;
  static constexpr int kGroups = kHead / 8;  // of eight columns of a head
  static constexpr int kGathered = S::kCounted;  // barrier of keys and values

 public:
  __device__ __forceinline__ NormAttention(const FewRowsInput<typename S::Weight>& input, NoFinish& op)
      : Base(input, op) {}

  __device__ __forceinline__ void run(heads::Args attention, const bf16* bias, bf16* out, int out_stride,
                                      int kept) {
    if constexpr (!Base::kNarrow) pdl_trigger();  // or when x has come
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

  // Of four columns of all tensors, a thread each.
  __device__ __forceinline__ uint2 load_bias(const bf16* bias) const {
    constexpr int kFours = kHead / 4;
    if (!bias || thread_ >= S::kTensors * kFours) return {0u, 0u};
    const int row = S::box_row(tile_, thread_ / kFours) + thread_ % kFours * 4;
    return *reinterpret_cast<const uint2*>(bias + row);
  }

  // All that is known before the kernels in front have come to their end; then x is on its way.
  __device__ __forceinline__ void prepare(const typename Base::Centred& condition, const uint2& bias) const {
    this->leave_centred(condition);
    if (thread_ < S::kTensors * (kHead / 4)) reinterpret_cast<uint2*>(shared_ + S::kBias)[thread_] = bias;
    __syncthreads();  // the barriers and what conditions x
    cluster_wait();
    pdl_wait();
    this->fetch_rows();
  }

  // The block's queries and its keys and values, these to all blocks: eight columns of a row a thread.
  __device__ __forceinline__ void make_rows() {
    this->multiply();
    __syncthreads();
    if constexpr (S::kSelf) clear_values();
    const int row = thread_ % S::kOwnTokens, group = thread_ / S::kOwnTokens;
    const int tensor = min(group / kGroups, S::kTensors - 1);
    static_assert(S::kOwnTokens * S::kTensors * kGroups <= S::kThreads, "one turn");
    this->await_sums(tensor);
    if (group < S::kTensors * kGroups && row < this->count(split_)) finish_row(tensor, row, group % kGroups);
    __syncthreads();
  }

  __device__ __forceinline__ void finish_row(int tensor, int row, int group) const {
    float bias[8];
    unpack8(reinterpret_cast<const uint4*>(shared_ + S::kBias)[tensor * kGroups + group], bias);
    const float4 a = this->finished(tensor, row, group * 8, {bias[0], bias[1], bias[2], bias[3]});
    const float4 b = this->finished(tensor, row, group * 8 + 4, {bias[4], bias[5], bias[6], bias[7]});
    const uint4 bits = {pack2(a.x, a.y), pack2(a.z, a.w), pack2(b.x, b.y), pack2(b.z, b.w)};
    if constexpr (S::kSelf) {
      const int token = this->first(split_) + row;
      if (tensor > 0) return gather(tensor == 1 ? S::kKeys : S::kValues, token, group, bits);
    }
    reinterpret_cast<uint4*>(queries() + row * S::kHeadPitch)[group] = bits;
  }

  // Eight numbers of a key or value into every block of the cluster; blocks begin with themselves.
  __device__ __forceinline__ void gather(int tensor, int token, int group, const uint4& bits) const {
    const int place = tensor + token * S::kHeadPitch * 2 + group * 16;
    const float4 v = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                      __uint_as_float(bits.w)};
#pragma unroll
    for (int further = 0; further < S::kSplit; ++further) {
      const uint32_t base = remote_address(shared_, (split_ + further) % S::kSplit);
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
      const flashrt::bf16* v, const int* prefix_length, const float* moments, flashrt::bf16* out,  \
      int slabs, int tokens, int keys, int prefix_rows, int kept, int k_stride, int v_stride,      \
      int out_stride, float eps, float scale) {                                                    \
    flashrt::NoFinish op;                                                                          \
    flashrt::NormAttention<flashrt::Shape>(                                                        \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x, nullptr, moments,    \
         slabs},                                                                                   \
        op)                                                                                        \
        .run({nullptr, k, v, prefix_length, tokens, keys, prefix_rows, 0, k_stride, v_stride, 1,   \
              0, scale * 1.4426950408889634f},                                                     \
             bias, out, out_stride, kept);                                                         \
  }

// With E4M3 weights.
#define FLASHRT_NORM_ATTENTION_FP8(name, Shape)                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2) name(                                       \
      const flashrt::bf16* x, const __grid_constant__ CUtensorMap weight, const float* x_scale,    \
      const float* weight_scale, const float* gain, const float* shift, const flashrt::bf16* bias, \
      const flashrt::bf16* k, const flashrt::bf16* v, const int* prefix_length,                    \
      const float* moments, flashrt::bf16* out, int slabs, int tokens, int keys, int prefix_rows,  \
      int kept, int x_stride, int k_stride, int v_stride, int out_stride, float eps,               \
      float scale) {                                                                               \
    flashrt::NoFinish op;                                                                          \
    flashrt::NormAttention<flashrt::Shape>(                                                        \
        {x, nullptr, weight_scale, &weight, gain, shift, eps, tokens, x_stride, nullptr, x_scale,  \
         moments, slabs},                                                                          \
        op)                                                                                        \
        .run({nullptr, k, v, prefix_length, tokens, keys, prefix_rows, 0, k_stride, v_stride, 1,   \
              0, scale * 1.4426950408889634f},                                                     \
             bias, out, out_stride, kept);                                                         \
  }

FLASHRT_NORM_ATTENTION(layer_norm_attention_k1536_d48_bf16_sm90, ContextAttention)
FLASHRT_NORM_ATTENTION(layer_norm_attention_self_k1536_d48_bf16_sm90, SelfAttention<flashrt::bf16>)
FLASHRT_NORM_ATTENTION_FP8(layer_norm_attention_self_k1536_d48_fp8_sm90, SelfAttention<flashrt::e4m3>)
#endif
