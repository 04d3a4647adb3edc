// linear for few rows: y = act(x W^T + b) + residual
// layer_norm_linear: y = act(n W^T + b), n = (x - mean) / sqrt(var + eps) * gain + shift
// layer_norm_linear_squares: the same without act, and squares [A, runs] float32, sums of squares of runs of
// the rows of y (linear_out.cuh)
// x [A, K], y [A, N] bf16, or behind a norm y E4M3 with out_scale [1] float32; rows of y and residual
// *_stride elements apart; b [N], residual [A, N] bf16 or null, residual may be y; gain, shift [K] float32 or
// null
// W [N, K] bf16, packed: x and W come as tile maps of 64 columns by the rows of a block
// or x [A, K] and W both E4M3, each with a scale [1] float32: maps of 128 columns; behind a norm, which has
// no gain and no shift then, x is bf16, rows x_stride elements apart, and n quantised with x_scale
// moments (row_moments.cuh) of x or of y, or null: a norm then takes them of x itself; those of y are left of
// N / rows slabs
// act as in activation.cuh, without the form with the error function
// float32 sums and epilogue, one rounding into y; x + x (gain - 1) is rounded to bf16, and so is what a block
// adds to the sums of E4M3 products that another finishes
// needs A <= 48, at K = 3072 A <= 16 behind a norm and as named, or 32, else;
// K as named, N a multiple of the rows of a block; grid of N / rows clusters; no workspace
// bound: memory, 2 K N bytes; half of it with E4M3
#include "../common/few_rows_product_sm90.cuh"
#include "../common/linear_out.cuh"
#include "../common/normed_product_sm90.cuh"
#include "../common/streamed_product_sm90.cuh"

#ifdef FLASHRT_SM90A
// With results of type Out; out_scale is that of E4M3 ones.
#define FLASHRT_LAYER_NORM_LINEAR(name, Shape, Out)                                                \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, 2)                        \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::Out* y,      \
           const float* out_scale, const float* moments, int slabs, int tokens, int y_stride,      \
           int activation, float eps) {                                                            \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x, nullptr, moments,    \
         slabs},                                                                                   \
        flashrt::LinearOut<flashrt::Shape, flashrt::Out>{{}, y, bias, nullptr, y_stride, 0,        \
                                                         activation, {}, {}, out_scale});          \
  }

#define FLASHRT_LAYER_NORM_LINEAR_SQUARES(name, Shape, blocks)                                     \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           float* squares, int tokens, int y_stride, int runs, float eps) {                        \
    flashrt::few_rows_squares<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x},                     \
        {{{}, y, bias, nullptr, y_stride, 0, 0, {}, {}}, squares, runs});                          \
  }

#define FLASHRT_LINEAR(name, Shape, blocks)                                                        \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const flashrt::bf16* bias, const flashrt::bf16* residual, flashrt::bf16* y,             \
           float* moments, int tokens, int y_stride, int residual_stride, int activation) {        \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, nullptr, nullptr, 0.0f, tokens, 0, &x},               \
        flashrt::MomentsOut<flashrt::Shape>{                                                       \
            {{}, y, bias, residual, y_stride, residual_stride, activation, {}, {}}, moments});     \
  }

// The same with E4M3 rows and weights.
#define FLASHRT_LINEAR_FP8(name, Shape, blocks)                                                    \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const float* x_scale, const float* weight_scale, const flashrt::bf16* bias,             \
           const flashrt::bf16* residual, flashrt::bf16* y, float* moments, int tokens,            \
           int y_stride, int residual_stride, int activation) {                                    \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, weight_scale, &weight, nullptr, nullptr, 0.0f, tokens, 0, &x, x_scale}, \
        flashrt::MomentsOut<flashrt::Shape>{                                                       \
            {{}, y, bias, residual, y_stride, residual_stride, activation, {}, {}}, moments});     \
  }

// Behind a norm that has neither gain nor shift, with E4M3 weights; n is quantised with x_scale. A block
// leaves registers for one of the kernel behind.
#define FLASHRT_LAYER_NORM_LINEAR_FP8(name, Shape, Out)                                            \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads * 3 / 2, 1)                \
      name(const flashrt::bf16* x, const __grid_constant__ CUtensorMap weight,                     \
           const float* x_scale, const float* weight_scale, const flashrt::bf16* bias,             \
           flashrt::Out* y, const float* out_scale, const float* moments, int slabs, int tokens,   \
           int x_stride, int y_stride, int activation, float eps) {                                \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, nullptr, weight_scale, &weight, nullptr, nullptr, eps, tokens, x_stride, nullptr,      \
         x_scale, moments, slabs},                                                                 \
        flashrt::LinearOut<flashrt::Shape, flashrt::Out>{{}, y, bias, nullptr, y_stride, 0,        \
                                                         activation, {}, {}, out_scale});          \
  }

namespace flashrt {

// Named for K and the rows of a block.
using NormLinear1536x32 = StreamedShape<32, 6, 4, 6, true>;
static_assert(NormLinear1536x32::kSharedBytes == 72992, "as the launcher has it");
using NormLinear1536x48 = StreamedShape<48, 6, 4, 6, true>;
static_assert(NormLinear1536x48::kSharedBytes == 88608, "as the launcher has it");
using NormLinear1536x72 = StreamedShape<72, 12, 2, 4, true>;
static_assert(NormLinear1536x72::kSharedBytes == 82768, "as the launcher has it");
using NormLinear1536x96 = StreamedShape<96, 12, 2, 6, true, 48, false, 4, true>;
static_assert(NormLinear1536x96::kSharedBytes == 114272, "as the launcher has it");
using Linear1536x32 = ByTokens<StreamedShape<32, 6, 4, 6, false>>;
static_assert(Linear1536x32::kSharedBytes == 67648, "as the launcher has it");
using Linear1536x48 = ByTokens<StreamedShape<48, 6, 4, 6, false>>;
static_assert(Linear1536x48::kSharedBytes == 83008, "as the launcher has it");
using Linear1536x96 = ByTokens<StreamedShape<96, 12, 2, 4, false>>;
static_assert(Linear1536x96::kSharedBytes == 92208, "as the launcher has it");
using Linear6144x96 = ByTokens<StreamedShape<96, 12, 8, 6, false, 48, false, 4, true>>;
static_assert(Linear6144x96::kSharedBytes == 114528, "as the launcher has it");
using Linear6144x96Fp8 = ByTokens<StreamedShape<96, 6, 8, 6, false, 48, false, 4, true, e4m3>>;
static_assert(Linear6144x96Fp8::kSharedBytes == 106464, "as the launcher has it");
using Linear1536x48Fp8 = ByTokens<StreamedShape<48, 3, 4, 3, false, 48, false, 3, true, e4m3>>;
static_assert(Linear1536x48Fp8::kSharedBytes == 40352, "as the launcher has it");
using NormLinear1536x96Fp8 = NormedShape<96, 6, 2>;
static_assert(NormLinear1536x96Fp8::kSharedBytes == 116048, "as the launcher has it");

// For weights of 19 to 88 MB: every multiprocessor but four has a block that streams 150 to 700 KB. Named
// for the rows of a block, and for the most tokens where another takes more. Any that follow each other in
// a network fit side by side on a multiprocessor.
using NormLinear3072x96 = StreamedShape<96, 12, 4, 6, true, 16, true>;
static_assert(NormLinear3072x96::kSharedBytes == 99360, "as the launcher has it");
using NormLinear3072x144 = StreamedShape<144, 24, 2, 4, true, 16, true>;
static_assert(NormLinear3072x144::kSharedBytes == 103376, "as the launcher has it");
using NormLinear3072x112 = StreamedShape<112, 48, 1, 6, true, 16, true>;
static_assert(NormLinear3072x112::kSharedBytes == 117152, "as the launcher has it");
static_assert(SquaresOut<NormLinear3072x96>::kRun * 4 == 24, "as the launcher has it");
static_assert(SquaresOut<NormLinear3072x144>::kRun * 4 == 24, "as the launcher has it");
using Linear3072x96Few = ByTokens<StreamedShape<96, 12, 4, 6, false, 16, true>>;
static_assert(Linear3072x96Few::kSharedBytes == 92224, "as the launcher has it");
using Linear3072x96 = ByTokens<StreamedShape<96, 12, 4, 6, false, 32, true>>;
static_assert(Linear3072x96::kSharedBytes == 110656, "as the launcher has it");

}  // namespace flashrt

FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k1536_32_bf16_sm90, NormLinear1536x32, bf16)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k1536_48_bf16_sm90, NormLinear1536x48, bf16)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k1536_72_bf16_sm90, NormLinear1536x72, bf16)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k1536_96_bf16_sm90, NormLinear1536x96, bf16)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k1536_96_bf16_into_fp8_sm90, NormLinear1536x96, e4m3)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k3072_96_bf16_sm90, NormLinear3072x96, bf16)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k3072_144_bf16_sm90, NormLinear3072x144, bf16)
FLASHRT_LAYER_NORM_LINEAR(layer_norm_linear_k3072_112_bf16_sm90, NormLinear3072x112, bf16)
FLASHRT_LAYER_NORM_LINEAR_SQUARES(layer_norm_linear_squares_k3072_96_bf16_sm90, NormLinear3072x96, 2)
FLASHRT_LAYER_NORM_LINEAR_SQUARES(layer_norm_linear_squares_k3072_144_bf16_sm90, NormLinear3072x144, 2)
FLASHRT_LINEAR(linear_k3072_96_16_bf16_sm90, Linear3072x96Few, 2)
FLASHRT_LINEAR(linear_k3072_96_bf16_sm90, Linear3072x96, 2)
FLASHRT_LINEAR(linear_k1536_32_bf16_sm90, Linear1536x32, 2)
FLASHRT_LINEAR(linear_k1536_48_bf16_sm90, Linear1536x48, 2)
FLASHRT_LINEAR(linear_k1536_96_bf16_sm90, Linear1536x96, 2)
FLASHRT_LINEAR(linear_k6144_96_bf16_sm90, Linear6144x96, 2)
FLASHRT_LINEAR_FP8(linear_k6144_96_fp8_sm90, Linear6144x96Fp8, 2)
FLASHRT_LINEAR_FP8(linear_k1536_48_fp8_sm90, Linear1536x48Fp8, 2)
FLASHRT_LAYER_NORM_LINEAR_FP8(layer_norm_linear_k1536_96_fp8_sm90, NormLinear1536x96Fp8, bf16)
FLASHRT_LAYER_NORM_LINEAR_FP8(layer_norm_linear_k1536_96_fp8_into_fp8_sm90, NormLinear1536x96Fp8, e4m3)
#endif
