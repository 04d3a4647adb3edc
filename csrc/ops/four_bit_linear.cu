// linear with weights of four bits: y = gate act(x W^T + b) + residual
// layer_norm_linear with such: y = act(n W^T + b), n = (x - mean) / sqrt(var + eps) * gain + shift
// layer_norm_linear_squares: the same without act, and squares [A, runs] float32, sums of squares of runs of
// the rows of y (linear_out.cuh)
// x [A, K] bf16, as it lies with 16-byte aligned rows for up to 16 tokens and for 80, else as a tile map of
// 64 columns by the tokens of a block; y [A, N] bf16, rows of x, y and residual *_stride elements apart;
// b [N], residual [A, N] bf16 or null, residual may be y; gate [N] float32 or null: 1; gain, shift [K]
// float32 or null
// W [N, K] in tiles of four-bit numbers with weight_scale [N, K / 128] float32 in tiles of rows
// (four_bit_product_sm90.cuh, flashrt_core/kernels/four_bits.py)
// act as in activation.cuh, without the form with the error function
// float32 sums and epilogue, one rounding into y; x + x (gain - 1) is rounded to bf16
// needs A <= the tokens and K as named, N a multiple of the rows of a block; grid of N / rows clusters; no
// workspace
// bound: memory, K N / 2 bytes and 1/16 of it
#include "../common/four_bit_product_sm90.cuh"
#include "../common/linear_out.cuh"

#ifdef FLASHRT_SM90A
#define FLASHRT_FOUR_BIT_NORM(name, Shape, blocks)                                                 \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const flashrt::FourBitTile* weight,              \
           const float* weight_scale, const float* gain, const float* shift,                       \
           const flashrt::bf16* bias, flashrt::bf16* y, int tokens, int y_stride, int activation,  \
           float eps) {                                                                            \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, weight, weight_scale, nullptr, gain, shift, eps, tokens, 0, &x},                 \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, nullptr, y_stride, 0, activation, {}, {}});\
  }

#define FLASHRT_FOUR_BIT(name, Shape, blocks)                                                      \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const flashrt::FourBitTile* weight,              \
           const float* weight_scale, const flashrt::bf16* bias, const float* gate,                \
           const flashrt::bf16* residual, flashrt::bf16* y, int tokens, int y_stride,              \
           int residual_stride, int activation) {                                                  \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, 0, &x},           \
        flashrt::GatedLinearOut<flashrt::Shape>{                                                   \
            {{}, y, bias, residual, y_stride, residual_stride, activation, {}, {}}, gate, {}});    \
  }

// x as it lies.
#define FLASHRT_FOUR_BIT_NORM_STRAIGHT(name, Shape, blocks)                                        \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const flashrt::FourBitTile* weight, const float* weight_scale,  \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           int tokens, int x_stride, int y_stride, int activation, float eps) {                    \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, gain, shift, eps, tokens, x_stride},                    \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, nullptr, y_stride, 0, activation, {}, {}});\
  }

#define FLASHRT_FOUR_BIT_SQUARES(name, Shape, blocks)                                              \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const flashrt::FourBitTile* weight, const float* weight_scale,  \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           float* squares, int tokens, int x_stride, int y_stride, int runs, float eps) {          \
    flashrt::few_rows_squares<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, gain, shift, eps, tokens, x_stride},                    \
        {{{}, y, bias, nullptr, y_stride, 0, 0, {}, {}}, squares, runs});                          \
  }

#define FLASHRT_FOUR_BIT_STRAIGHT(name, Shape, blocks)                                             \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const flashrt::FourBitTile* weight, const float* weight_scale,  \
           const flashrt::bf16* bias, const float* gate, const flashrt::bf16* residual,            \
           flashrt::bf16* y, int tokens, int x_stride, int y_stride, int residual_stride,          \
           int activation) {                                                                       \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, x_stride},              \
        flashrt::GatedLinearOut<flashrt::Shape>{                                                   \
            {{}, y, bias, residual, y_stride, residual_stride, activation, {}, {}}, gate, {}});    \
  }

namespace flashrt {

// Named for K, the rows of a block and the most tokens.
using NormFour3072x128x16 = FourBitShape<16, 2, 6, 4, 6, true, true>;
static_assert(NormFour3072x128x16::kSharedBytes == 102032, "as the launcher has it");
using NormFour3072x192x16 = FourBitShape<16, 3, 6, 4, 4, true, true>;
static_assert(NormFour3072x192x16::kSharedBytes == 108656, "as the launcher has it");
static_assert(SquaresOut<NormFour3072x128x16>::kRun * 4 == 32, "as the launcher has it");
static_assert(SquaresOut<NormFour3072x192x16>::kRun * 4 == 48, "as the launcher has it");
using NormFour3072x256x16 = FourBitShape<16, 4, 6, 4, 3, true, true>;
static_assert(NormFour3072x256x16::kSharedBytes == 115296, "as the launcher has it");
using NormFour3072x128x32 = FourBitShape<32, 2, 6, 4, 3, true>;
static_assert(NormFour3072x128x32::kSharedBytes == 110944, "as the launcher has it");
using NormFour3072x64x32 = FourBitShape<32, 1, 6, 4, 6, true>;
static_assert(NormFour3072x64x32::kSharedBytes == 100240, "as the launcher has it");
using Four3072x128x16 = FourBitShape<16, 2, 6, 4, 12, false, true, true>;
static_assert(Four3072x128x16::kSharedBytes == 85296, "as the launcher has it");
using Four3072x128x40 = FourBitShape<40, 2, 6, 4, 3, false>;
static_assert(Four3072x128x40::kSharedBytes == 109728, "as the launcher has it");
using Four3072x64x40 = FourBitShape<40, 1, 6, 4, 6, false>;
static_assert(Four3072x64x40::kSharedBytes == 98000, "as the launcher has it");
using Four3072x128x80 = FourBitShape<80, 2, 3, 8, 2, false, true, true>;
static_assert(Four3072x128x80::kSharedBytes == 112224, "as the launcher has it");
using Four14336x128x16 = FourBitShape<16, 2, 14, 8, 5, false, true>;
static_assert(Four14336x128x16::kSharedBytes == 113984, "as the launcher has it");
using Four14336x192x40 = FourBitShape<40, 3, 14, 8, 3, false>;
static_assert(Four14336x192x40::kSharedBytes == 221984, "as the launcher has it");

}  // namespace flashrt

FLASHRT_FOUR_BIT_NORM_STRAIGHT(layer_norm_linear_k3072_128_16_w4_sm90, NormFour3072x128x16, 2)
FLASHRT_FOUR_BIT_NORM_STRAIGHT(layer_norm_linear_k3072_192_16_w4_sm90, NormFour3072x192x16, 2)
FLASHRT_FOUR_BIT_NORM_STRAIGHT(layer_norm_linear_k3072_256_16_w4_sm90, NormFour3072x256x16, 2)
FLASHRT_FOUR_BIT_SQUARES(layer_norm_linear_squares_k3072_128_16_w4_sm90, NormFour3072x128x16, 2)
FLASHRT_FOUR_BIT_SQUARES(layer_norm_linear_squares_k3072_192_16_w4_sm90, NormFour3072x192x16, 2)
FLASHRT_FOUR_BIT_NORM(layer_norm_linear_k3072_128_32_w4_sm90, NormFour3072x128x32, 2)
FLASHRT_FOUR_BIT_NORM(layer_norm_linear_k3072_64_32_w4_sm90, NormFour3072x64x32, 2)
FLASHRT_FOUR_BIT_STRAIGHT(linear_k3072_128_16_w4_sm90, Four3072x128x16, 2)
FLASHRT_FOUR_BIT(linear_k3072_128_40_w4_sm90, Four3072x128x40, 2)
FLASHRT_FOUR_BIT(linear_k3072_64_40_w4_sm90, Four3072x64x40, 2)
FLASHRT_FOUR_BIT_STRAIGHT(linear_k3072_128_80_w4_sm90, Four3072x128x80, 2)
FLASHRT_FOUR_BIT_STRAIGHT(linear_k14336_128_16_w4_sm90, Four14336x128x16, 2)
FLASHRT_FOUR_BIT(linear_k14336_192_40_w4_sm90, Four14336x192x40, 1)
#endif
