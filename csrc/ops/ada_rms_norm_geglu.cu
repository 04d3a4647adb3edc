// ada_rms_norm_geglu: y = gelu_tanh(n Wg^T) * (n Wu^T),
// n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift
// x [A, K], y [A, F] bf16; scale, shift [K] float32
// W [2 F, K] (gate and up rows in turn) bf16, or int8 with weight_scale [2 F] float32
// or W E4M3 with weight_scale [2 F], as a map of tiles of 128 columns by the rows of a block, n quantised
// with x_scale [1], and y bf16, or E4M3 with out_scale [1]
// rows *_stride elements apart (W packed)
// float32 sums and activation, one rounding into y; x (1 + scale) is rounded to bf16, but for E4M3
// needs K = 1024, 2 F a multiple of the rows of a block, 16-byte aligned rows; no workspace
// bound: memory, 4 K F bytes; half of it with 8 bits
#include "../common/activation.cuh"
#include "../common/few_rows_product_sm90.cuh"
#include "../common/normed_product_sm90.cuh"
#include "../common/skinny_product.cuh"
#include "../common/staged_product_sm90.cuh"

namespace flashrt {

template <class S, class Out = bf16>
struct Geglu : NeighbourRows<S> {
  static constexpr bool kFetches = false;

  Out* y;
  int y_stride;
  const float* out_scale = nullptr;  // [1], of E4M3
  float factor = 1.0f;

  __device__ __forceinline__ void prepare(int, int) { factor = store_factor<Out>(out_scale); }
  __device__ __forceinline__ void fetch(int, int, int, int) {}

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    Out* target = y + static_cast<size_t>(token) * y_stride + tile * (S::kRows / 2) + item * 2;
    store2(target, gelu_tanh(v.x) * v.y, gelu_tanh(v.z) * v.w, factor);
  }
};

}  // namespace flashrt

#define FLASHRT_ADA_GEGLU(name, Shape, blocks)                                                     \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const flashrt::Shape::Weight* weight, const float* weight_scale, flashrt::bf16* y,      \
           int tokens, int x_stride, int y_stride, float eps) {                                    \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, scale, shift, eps, tokens, x_stride},                   \
        flashrt::Geglu<flashrt::Shape>{{}, y, y_stride});                                          \
  }

#ifdef FLASHRT_SM90A
// With E4M3 weights and results of type Out. A block leaves registers for one of the kernel behind.
#define FLASHRT_ADA_GEGLU_FP8(name, Shape, Out)                                                    \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads * 3 / 2, 1)                \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const __grid_constant__ CUtensorMap weight, const float* x_scale,                       \
           const float* weight_scale, flashrt::Out* y, const float* out_scale, int tokens,         \
           int x_stride, int y_stride, float eps) {                                                \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, nullptr, weight_scale, &weight, scale, shift, eps, tokens, x_stride, nullptr, x_scale, \
         nullptr, 0, true},                                                                        \
        flashrt::Geglu<flashrt::Shape, flashrt::Out>{{}, y, y_stride, out_scale});                 \
  }
#endif

namespace flashrt {

// Named for the most tokens they take.
using Geglu14Cluster = SkinnyShape<1, 8, 4, 1, 8, 1, From::kBulk, 8, true>;
static_assert(Geglu14Cluster::kSharedBytes == 137808, "as the launcher has it");
using Geglu30Cluster = SkinnyShape<2, 8, 4, 1, 8, 1, From::kBulk, 8, true>;
static_assert(Geglu30Cluster::kSharedBytes == 142416, "as the launcher has it");
using Geglu62Cluster = SkinnyShape<4, 8, 4, 1, 8, 1, From::kBulk, 8, true>;
static_assert(Geglu62Cluster::kSharedBytes == 155728, "as the launcher has it");
using Geglu14 = SkinnyShape<1, 4, 4, 1, 8, 1, From::kRegisters, 0, true>;
static_assert(Geglu14::kSharedBytes == 23088, "as the launcher has it");
using Geglu62 = SkinnyShape<4, 2, 4, 1, 8, 1, From::kRegisters, 0, true>;
static_assert(Geglu62::kSharedBytes == 57376, "as the launcher has it");
using Geglu54Sm90 = WarpgroupShape<56, 4, 2, From::kBulk, 2, true>;
static_assert(Geglu54Sm90::kSharedBytes == 113568, "as the launcher has it");
using Geglu62Sm90 = WarpgroupShape<64, 8, 1, From::kBulk, 2, true>;
static_assert(Geglu62Sm90::kSharedBytes == 171552, "as the launcher has it");
using Geglu14ClusterI8 = SkinnyShape<1, 8, 4, 1, 8, 1, From::kBulk, 8, true, int8_t, true>;
static_assert(Geglu14ClusterI8::kSharedBytes == 70224, "as the launcher has it");
using Geglu14I8Sm90 = StagedShape<8>;
static_assert(Geglu14I8Sm90::kSharedBytes == 102928, "as the launcher has it");
using Geglu30ClusterI8 = SkinnyShape<2, 8, 4, 1, 8, 1, From::kBulk, 8, true, int8_t>;
static_assert(Geglu30ClusterI8::kSharedBytes == 80976, "as the launcher has it");
using Geglu14I8 = SkinnyShape<1, 4, 4, 1, 8, 1, From::kRegisters, 0, true, int8_t>;
static_assert(Geglu14I8::kSharedBytes == 23088, "as the launcher has it");
using Geglu62I8 = SkinnyShape<4, 2, 4, 1, 8, 1, From::kRegisters, 0, true, int8_t>;
static_assert(Geglu62I8::kSharedBytes == 57376, "as the launcher has it");
using Geglu54I8Sm90 = WarpgroupShape<56, 4, 2, From::kRegisters, 2, true, int8_t>;
static_assert(Geglu54I8Sm90::kSharedBytes == 49248, "as the launcher has it");
using Geglu56Fp8 = NormedShape<128, 4, 2, 56, true>;
static_assert(Geglu56Fp8::kSharedBytes == 106432, "as the launcher has it");

}  // namespace flashrt

FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_14_bf16, Geglu14, 1)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_62_bf16, Geglu62, 1)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_14_i8, Geglu14I8, 1)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_62_i8, Geglu62I8, 1)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_14_bf16_cluster, Geglu14Cluster, 2)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_30_bf16_cluster, Geglu30Cluster, 1)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_62_bf16_cluster, Geglu62Cluster, 1)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_14_i8_cluster, Geglu14ClusterI8, 2)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_30_i8_cluster, Geglu30ClusterI8, 1)
#endif

#ifdef FLASHRT_SM90A
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_54_bf16_sm90, Geglu54Sm90, 2)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_62_bf16_sm90, Geglu62Sm90, 1)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_14_i8_sm90, Geglu14I8Sm90, 3)
FLASHRT_ADA_GEGLU(ada_rms_norm_geglu_54_i8_sm90, Geglu54I8Sm90, 2)
FLASHRT_ADA_GEGLU_FP8(ada_rms_norm_geglu_56_fp8_sm90, Geglu56Fp8, bf16)
FLASHRT_ADA_GEGLU_FP8(ada_rms_norm_geglu_56_fp8_into_fp8_sm90, Geglu56Fp8, e4m3)
#endif
