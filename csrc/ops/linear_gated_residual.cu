// linear_gated_residual: y += gate * (x W^T + b), in place; b [N] bf16 or null, in the kernels with tiles of
// x and of W; the others have none
// x [A, K], y [A, N] bf16, rows *_stride elements apart; gate [N] float32
// W [N, K] bf16, or int8 with weight_scale [N] float32; packed; or x and W E4M3 with x_scale [1] and
// weight_scale [N], as tiles of 128 columns
// float32 throughout, one rounding into y
// needs K = 2048 or 4096, or 3072 or 14336 in those with tiles of both; N a multiple of the rows of a block,
// 16-byte aligned rows; no workspace
// bound: memory, 2 K N bytes; half of it with 8 bits
#include "../common/few_rows_product_sm90.cuh"
#include "../common/skinny_product.cuh"
#include "../common/streamed_product_sm90.cuh"

namespace flashrt {

template <class S>
struct GatedResidual : NeighbourRows<S> {
  static constexpr bool kFetches = true;

  bf16* y;
  const float* gate;
  int y_stride;
  float4 gates;
  uint2 before;

  __device__ __forceinline__ bf16* target(int tile, int token, int item) const {
    return y + static_cast<size_t>(token) * y_stride + tile * S::kRows + item * 4;
  }

  __device__ __forceinline__ void prepare(int tile, int item) {
    gates = *reinterpret_cast<const float4*>(gate + tile * S::kRows + item * 4);
  }

  __device__ __forceinline__ void fetch(int tile, int token, int item, int tokens) {
    if (token < tokens) before = load_fresh2(target(tile, token, item));
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    const float2 low = unpack2(before.x), high = unpack2(before.y);
    const uint2 after = {pack2(low.x + gates.x * v.x, low.y + gates.y * v.y),
                         pack2(high.x + gates.z * v.z, high.y + gates.w * v.w)};
    *reinterpret_cast<uint2*>(target(tile, token, item)) = after;
  }
};

// The same with a bias behind the product.
template <class S>
struct BiasedGatedResidual : GatedResidual<S> {
  const bf16* bias;
  float4 offsets;

  __device__ __forceinline__ void prepare(int tile, int item) {
    GatedResidual<S>::prepare(tile, item);
    offsets = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!bias) return;
    const uint2 v = *reinterpret_cast<const uint2*>(bias + tile * S::kRows + item * 4);
    const float2 low = unpack2(v.x), high = unpack2(v.y);
    offsets = {low.x, low.y, high.x, high.y};
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    GatedResidual<S>::finish(tile, token, item,
                             {v.x + offsets.x, v.y + offsets.y, v.z + offsets.z, v.w + offsets.w});
  }
  __device__ __forceinline__ void finish_row(int tile, int token, int item, float4 v, bool there) const {
    if (there) finish(tile, token, item, v);
  }
};

}  // namespace flashrt

#define FLASHRT_RESIDUAL(name, Shape, blocks)                                                      \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const flashrt::Shape::Weight* weight,                           \
           const float* weight_scale, const float* gate, flashrt::bf16* y, int tokens,             \
           int x_stride, int y_stride) {                                                           \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, x_stride},              \
        flashrt::GatedResidual<flashrt::Shape>{{}, y, gate, y_stride, {}, {}});                    \
  }

// The same with the weight as a map of tiles of 64 rows by 64 columns.
#define FLASHRT_RESIDUAL_TILES(name, Shape, blocks)                                                \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const __grid_constant__ CUtensorMap weight,                     \
           const float* weight_scale, const float* gate, flashrt::bf16* y, int tokens,             \
           int x_stride, int y_stride) {                                                           \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, nullptr, weight_scale, &weight, nullptr, nullptr, 0.0f, tokens, x_stride},             \
        flashrt::GatedResidual<flashrt::Shape>{{}, y, gate, y_stride, {}, {}});                    \
  }

// The same with bias, and both x and the weight as maps of tiles.
#define FLASHRT_RESIDUAL_STREAMED(name, Shape, blocks)                                             \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const flashrt::bf16* bias, const float* gate, flashrt::bf16* y, int tokens,             \
           int y_stride) {                                                                         \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, nullptr, nullptr, 0.0f, tokens, 0, &x},               \
        flashrt::BiasedGatedResidual<flashrt::Shape>{{{}, y, gate, y_stride, {}, {}}, bias, {}});  \
  }

// The same with E4M3 rows and weights.
#define FLASHRT_RESIDUAL_FP8(name, Shape, blocks)                                                  \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const float* x_scale, const float* weight_scale, const flashrt::bf16* bias,             \
           const float* gate, flashrt::bf16* y, int tokens, int y_stride) {                        \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, weight_scale, &weight, nullptr, nullptr, 0.0f, tokens, 0, &x, x_scale,  \
         nullptr, 0, true},                                                                        \
        flashrt::BiasedGatedResidual<flashrt::Shape>{{{}, y, gate, y_stride, {}, {}}, bias, {}});  \
  }

namespace flashrt {

// Named for the most tokens they take.
using Out16Cluster = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false>;
static_assert(Out16Cluster::kSharedBytes == 12336, "as the launcher has it");
using Out32Cluster = SkinnyShape<2, 2, 4, 1, 8, 2, From::kRegisters, 0, false>;
static_assert(Out32Cluster::kSharedBytes == 26656, "as the launcher has it");
using Out64Cluster = SkinnyShape<4, 2, 4, 1, 8, 2, From::kRegisters, 0, false>;
static_assert(Out64Cluster::kSharedBytes == 53280, "as the launcher has it");
using Down16Cluster = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false>;
static_assert(Down16Cluster::kSharedBytes == 22576, "as the launcher has it");
using Down32Cluster = SkinnyShape<2, 4, 4, 1, 8, 4, From::kBulk, 4, false>;
static_assert(Down32Cluster::kSharedBytes == 71728, "as the launcher has it");
using Down64Cluster = SkinnyShape<4, 4, 4, 1, 8, 4, From::kBulk, 4, false>;
static_assert(Down64Cluster::kSharedBytes == 90160, "as the launcher has it");
using Out16 = SkinnyShape<1, 1, 8, 1, 8, 1, From::kRegisters, 0, false>;
static_assert(Out16::kSharedBytes == 4112, "as the launcher has it");
using Out64 = SkinnyShape<4, 1, 8, 1, 8, 1, From::kRegisters, 0, false>;
static_assert(Out64::kSharedBytes == 16400, "as the launcher has it");
using Down16 = SkinnyShape<1, 1, 16, 1, 8, 1, From::kRegisters, 0, false>;
static_assert(Down16::kSharedBytes == 4112, "as the launcher has it");
using Out56Sm90 = WarpgroupShape<56, 2, 8, From::kRegisters, 2, false>;
static_assert(Out56Sm90::kSharedBytes == 44832, "as the launcher has it");
using Out64Sm90 = WarpgroupShape<64, 2, 8, From::kRegisters, 2, false>;
static_assert(Out64Sm90::kSharedBytes == 51232, "as the launcher has it");
using Down56Sm90 = WarpgroupShape<56, 4, 8, From::kTiles, 2, false>;
static_assert(Down56Sm90::kSharedBytes == 108592, "as the launcher has it");
using Down64Sm90 = WarpgroupShape<64, 4, 8, From::kTiles, 2, false>;
static_assert(Down64Sm90::kSharedBytes == 114736, "as the launcher has it");
using Out16ClusterI8 = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false, int8_t, true>;
static_assert(Out16ClusterI8::kSharedBytes == 12336, "as the launcher has it");
using Out32ClusterI8 = SkinnyShape<2, 2, 4, 1, 8, 2, From::kRegisters, 0, false, int8_t>;
static_assert(Out32ClusterI8::kSharedBytes == 26656, "as the launcher has it");
using Out64ClusterI8 = SkinnyShape<4, 2, 4, 1, 8, 2, From::kRegisters, 0, false, int8_t>;
static_assert(Out64ClusterI8::kSharedBytes == 53280, "as the launcher has it");
using Down16ClusterI8 = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false, int8_t, true>;
static_assert(Down16ClusterI8::kSharedBytes == 22576, "as the launcher has it");
using Down32ClusterI8 = SkinnyShape<2, 4, 4, 1, 8, 4, From::kBulk, 4, false, int8_t>;
static_assert(Down32ClusterI8::kSharedBytes == 45104, "as the launcher has it");
using Down64ClusterI8 = SkinnyShape<4, 4, 4, 1, 8, 4, From::kBulk, 4, false, int8_t>;
static_assert(Down64ClusterI8::kSharedBytes == 90160, "as the launcher has it");
using Out16I8 = SkinnyShape<1, 1, 8, 1, 8, 1, From::kRegisters, 0, false, int8_t>;
static_assert(Out16I8::kSharedBytes == 4112, "as the launcher has it");
using Out64I8 = SkinnyShape<4, 1, 8, 1, 8, 1, From::kRegisters, 0, false, int8_t>;
static_assert(Out64I8::kSharedBytes == 16400, "as the launcher has it");
using Down16I8 = SkinnyShape<1, 1, 16, 1, 8, 1, From::kRegisters, 0, false, int8_t>;
static_assert(Down16I8::kSharedBytes == 4112, "as the launcher has it");
using Out56I8Sm90 = WarpgroupShape<56, 2, 8, From::kRegisters, 2, false, int8_t>;
static_assert(Out56I8Sm90::kSharedBytes == 44832, "as the launcher has it");
using Out64I8Sm90 = WarpgroupShape<64, 2, 8, From::kRegisters, 2, false, int8_t>;
static_assert(Out64I8Sm90::kSharedBytes == 51232, "as the launcher has it");
using Down56I8Sm90 = WarpgroupShape<56, 4, 8, From::kRegisters, 2, false, int8_t>;
static_assert(Down56I8Sm90::kSharedBytes == 44832, "as the launcher has it");
using Down64I8Sm90 = WarpgroupShape<64, 4, 8, From::kRegisters, 1, false, int8_t>;
static_assert(Down64I8Sm90::kSharedBytes == 51232, "as the launcher has it");

// Named for the rows of a block; up to 32 tokens, or fewer where the name says so.
using Streamed3072x96Few = StreamedShape<96, 12, 4, 6, false, 16, true>;
static_assert(Streamed3072x96Few::kSharedBytes == 92224, "as the launcher has it");
using Streamed14336x96Few = StreamedShape<96, 56, 4, 6, false, 16, true>;
static_assert(Streamed14336x96Few::kSharedBytes == 92224, "as the launcher has it");
using Streamed3072x96 = StreamedShape<96, 12, 4, 6, false, 32, true>;
static_assert(Streamed3072x96::kSharedBytes == 110656, "as the launcher has it");
using Streamed14336x96 = StreamedShape<96, 56, 4, 6, false, 32, true>;
static_assert(Streamed14336x96::kSharedBytes == 110656, "as the launcher has it");
using Streamed4096x64Fp8 = ByTokens<StreamedShape<64, 4, 8, 4, false, 56, false, 4, true, e4m3>>;
static_assert(Streamed4096x64Fp8::kSharedBytes == 67760, "as the launcher has it");

}  // namespace flashrt

FLASHRT_RESIDUAL(linear_gated_residual_k2048_16_bf16, Out16, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_64_bf16, Out64, 1)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_16_bf16, Down16, 1)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_16_i8, Out16I8, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_64_i8, Out64I8, 1)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_16_i8, Down16I8, 1)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
FLASHRT_RESIDUAL(linear_gated_residual_k2048_16_bf16_cluster, Out16Cluster, 4)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_32_bf16_cluster, Out32Cluster, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_64_bf16_cluster, Out64Cluster, 1)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_16_bf16_cluster, Down16Cluster, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_32_bf16_cluster, Down32Cluster, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_64_bf16_cluster, Down64Cluster, 1)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_16_i8_cluster, Out16ClusterI8, 4)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_32_i8_cluster, Out32ClusterI8, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_64_i8_cluster, Out64ClusterI8, 1)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_16_i8_cluster, Down16ClusterI8, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_32_i8_cluster, Down32ClusterI8, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_64_i8_cluster, Down64ClusterI8, 1)
#endif

#ifdef FLASHRT_SM90A
FLASHRT_RESIDUAL(linear_gated_residual_k2048_56_bf16_sm90, Out56Sm90, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_64_bf16_sm90, Out64Sm90, 2)
FLASHRT_RESIDUAL_TILES(linear_gated_residual_k4096_56_bf16_sm90, Down56Sm90, 2)
FLASHRT_RESIDUAL_TILES(linear_gated_residual_k4096_64_bf16_sm90, Down64Sm90, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_56_i8_sm90, Out56I8Sm90, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k2048_64_i8_sm90, Out64I8Sm90, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_56_i8_sm90, Down56I8Sm90, 2)
FLASHRT_RESIDUAL(linear_gated_residual_k4096_64_i8_sm90, Down64I8Sm90, 2)
FLASHRT_RESIDUAL_STREAMED(linear_gated_residual_k3072_96_16_bf16_sm90, Streamed3072x96Few, 2)
FLASHRT_RESIDUAL_STREAMED(linear_gated_residual_k14336_96_16_bf16_sm90, Streamed14336x96Few, 2)
FLASHRT_RESIDUAL_STREAMED(linear_gated_residual_k3072_96_bf16_sm90, Streamed3072x96, 2)
FLASHRT_RESIDUAL_STREAMED(linear_gated_residual_k14336_96_bf16_sm90, Streamed14336x96, 2)
FLASHRT_RESIDUAL_FP8(linear_gated_residual_k4096_64_fp8_sm90, Streamed4096x64Fp8, 2)
#endif
