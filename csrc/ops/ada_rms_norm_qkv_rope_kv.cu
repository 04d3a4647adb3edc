// ada_rms_norm_qkv_rope_kv: n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift, [q|k|v] = n W^T,
// q and k turned by their rotary angles (dimension i with i + d/2)
// x [A, K] bf16; scale, shift [K], rope [A, d] float32 (cosines, then sines)
// W [(heads + 2) d, K] bf16, or int8 with weight_scale [(heads + 2) d] float32
// q [A, heads d], k, v [A, d] bf16: rows of the cache; rows *_stride elements apart
// float32 sums and rotation, one rounding into each output; x (1 + scale) is rounded to bf16
// needs d = 256, K = 1024, 16-byte aligned rows; no workspace
// bound: memory, 2 K (heads + 2) d bytes; half of it with int8
#include "../common/few_rows_product_sm90.cuh"
#include "../common/skinny_product.cuh"

namespace flashrt {

template <class S>
struct QkvRope {
  static constexpr bool kNeighbours = false;  // the four rows of an item
  static constexpr bool kFetches = true;
  static constexpr int kDim = 256, kHalf = kDim / 2;
  static constexpr int kUnits = S::kRows / 16;  // a unit: 8 dimensions of a head and their partners

  bf16 *q, *k, *v;
  const float* rope;
  int heads, q_stride, kv_stride, rope_stride;
  float2 cosine, sine;

  __device__ __forceinline__ static int low_row(int item) { return item / 4 * 16 + item % 4 * 2; }
  __device__ __forceinline__ static int high_row(int item) { return low_row(item) + 8; }

  __device__ __forceinline__ int weight_row(int tile, int column, int row) const {
    const int unit = tile * kUnits + column / 2;
    return unit / 16 * kDim + column % 2 * kHalf + unit % 16 * 8 + row;
  }
  __device__ __forceinline__ int head(int tile, int item) const {
    return (tile * kUnits + item / 4) / 16;
  }
  __device__ __forceinline__ int dimension(int tile, int item) const {
    return (tile * kUnits + item / 4) % 16 * 8 + item % 4 * 2;
  }

  __device__ __forceinline__ float4 row_scales(const float* scales, int tile, int item) const {
    const float* p = scales + head(tile, item) * kDim + dimension(tile, item);
    const float2 low = *reinterpret_cast<const float2*>(p);
    const float2 high = *reinterpret_cast<const float2*>(p + kHalf);
    return {low.x, low.y, high.x, high.y};
  }

  __device__ __forceinline__ void prepare(int, int) {}

  __device__ __forceinline__ void fetch(int tile, int token, int item, int tokens) {
    if (token >= tokens || head(tile, item) > heads) return;  // values are not turned
    const float* p = rope + token * rope_stride + dimension(tile, item);
    cosine = load_fresh2(p);
    sine = load_fresh2(p + kHalf);
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 y) const {
    const int at = head(tile, item), column = dimension(tile, item);
    bf16* target = at < heads    ? q + static_cast<size_t>(token) * q_stride + at * kDim
                   : at == heads ? k + static_cast<size_t>(token) * kv_stride
                                 : v + static_cast<size_t>(token) * kv_stride;
    if (at <= heads) {
      y = {y.x * cosine.x - y.z * sine.x, y.y * cosine.y - y.w * sine.y,
           y.z * cosine.x + y.x * sine.x, y.w * cosine.y + y.y * sine.y};
    }
    *reinterpret_cast<uint32_t*>(target + column) = pack2(y.x, y.y);
    *reinterpret_cast<uint32_t*>(target + column + kHalf) = pack2(y.z, y.w);
  }
};

}  // namespace flashrt

#define FLASHRT_QKV(name, Shape, blocks)                                                           \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const flashrt::Shape::Weight* weight, const float* weight_scale, const float* rope,     \
           flashrt::bf16* q, flashrt::bf16* k, flashrt::bf16* v, int tokens, int heads,            \
           int x_stride, int rope_stride, int q_stride, int kv_stride, float eps) {                \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, scale, shift, eps, tokens, x_stride},                   \
        flashrt::QkvRope<flashrt::Shape>{q, k, v, rope, heads, q_stride, kv_stride, rope_stride,   \
                                         {}, {}});                                                 \
  }

namespace flashrt {

// Named for the most tokens they take.
using Qkv14Cluster = SkinnyShape<1, 10, 1, 1, 8, 4, From::kRegisters, 0, true>;
static_assert(Qkv14Cluster::kSharedBytes == 51552, "as the launcher has it");
using Qkv30Cluster = SkinnyShape<2, 10, 1, 1, 8, 4, From::kRegisters, 0, true>;
static_assert(Qkv30Cluster::kSharedBytes == 103520, "as the launcher has it");
using Qkv14 = SkinnyShape<1, 2, 4, 1, 8, 1, From::kRegisters, 0, true>;
static_assert(Qkv14::kSharedBytes == 14880, "as the launcher has it");
using Qkv62 = SkinnyShape<4, 2, 4, 1, 8, 1, From::kRegisters, 0, true>;
static_assert(Qkv62::kSharedBytes == 57376, "as the launcher has it");
using Qkv54Sm90 = WarpgroupShape<56, 2, 4, From::kRegisters, 2, true>;
static_assert(Qkv54Sm90::kSharedBytes == 48160, "as the launcher has it");
using Qkv62Sm90 = WarpgroupShape<64, 2, 4, From::kRegisters, 2, true>;
static_assert(Qkv62Sm90::kSharedBytes == 54816, "as the launcher has it");
using Qkv14ClusterI8 = SkinnyShape<1, 10, 1, 1, 8, 4, From::kRegisters, 0, true, int8_t>;
static_assert(Qkv14ClusterI8::kSharedBytes == 51552, "as the launcher has it");
using Qkv14I8Hopper = SkinnyShape<1, 8, 2, 1, 8, 2, From::kRegisters, 0, true, int8_t, true>;
static_assert(Qkv14I8Hopper::kSharedBytes == 42704, "as the launcher has it");
using Qkv30ClusterI8 = SkinnyShape<2, 10, 1, 1, 8, 4, From::kRegisters, 0, true, int8_t>;
static_assert(Qkv30ClusterI8::kSharedBytes == 103520, "as the launcher has it");
using Qkv14I8 = SkinnyShape<1, 2, 4, 1, 8, 1, From::kRegisters, 0, true, int8_t>;
static_assert(Qkv14I8::kSharedBytes == 14880, "as the launcher has it");
using Qkv62I8 = SkinnyShape<4, 2, 4, 1, 8, 1, From::kRegisters, 0, true, int8_t>;
static_assert(Qkv62I8::kSharedBytes == 57376, "as the launcher has it");
using Qkv54I8Sm90 = WarpgroupShape<56, 2, 4, From::kRegisters, 2, true, int8_t>;
static_assert(Qkv54I8Sm90::kSharedBytes == 48160, "as the launcher has it");
using Qkv62I8Sm90 = WarpgroupShape<64, 2, 4, From::kRegisters, 1, true, int8_t>;
static_assert(Qkv62I8Sm90::kSharedBytes == 54816, "as the launcher has it");

}  // namespace flashrt

FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_14_bf16, Qkv14, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_62_bf16, Qkv62, 1)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_14_i8, Qkv14I8, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_62_i8, Qkv62I8, 1)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_14_bf16_cluster, Qkv14Cluster, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_30_bf16_cluster, Qkv30Cluster, 1)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_14_i8_cluster, Qkv14ClusterI8, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_30_i8_cluster, Qkv30ClusterI8, 1)
#endif

#ifdef FLASHRT_SM90A
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_54_bf16_sm90, Qkv54Sm90, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_62_bf16_sm90, Qkv62Sm90, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_14_i8_hopper, Qkv14I8Hopper, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_54_i8_sm90, Qkv54I8Sm90, 2)
FLASHRT_QKV(ada_rms_norm_qkv_rope_kv_62_i8_sm90, Qkv62I8Sm90, 2)
#endif
