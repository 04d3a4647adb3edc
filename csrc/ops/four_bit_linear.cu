// linear with weights of four bits: y = gate act(x W^T + b) + residual
// layer_norm_linear with such: y = act(n W^T + b), n = (x - mean) / sqrt(var + eps) * gain + shift
// x [A, K] as a tile map of 64 columns by the tokens of a block; y [A, N] bf16, rows of y and residual
// *_stride elements apart; b [N], residual [A, N] bf16 or null, residual may be y; gate [N] float32 or
// null: 1; gain, shift [K] float32 or null
// W [N, K] in tiles of four-bit numbers with weight_scale [N, K / 128] float32 in tiles of rows
// (four_bit_product_sm90.cuh, flashrt_core/kernels/four_bits.py)
// act as in activation.cuh, without the form with the error function
// float32 sums and epilogue, one rounding into y; x + x (gain - 1) is rounded to bf16
// needs A <= the tokens and K as named, N a multiple of the rows of a block; grid of N / rows clusters; no
// workspace
// bound: memory, K N / 2 bytes and 1/16 of it
#include "../common/activation.cuh"
#include "../common/four_bit_product_sm90.cuh"

namespace flashrt {

template <class S>
struct FourBitOut : NeighbourRows<S> {
  static constexpr bool kFetches = true;

  bf16* y;
  const bf16 *bias, *residual;
  const float* gate;
  int y_stride, residual_stride, activation;
  float4 offsets, gates;
  uint2 before;

  __device__ __forceinline__ void prepare(int tile, int item) {
    const int at = tile * S::kRows + item * 4;
    offsets = {0.0f, 0.0f, 0.0f, 0.0f};
    gates = {1.0f, 1.0f, 1.0f, 1.0f};
    if (gate) gates = *reinterpret_cast<const float4*>(gate + at);
    if (!bias) return;
    const uint2 v = *reinterpret_cast<const uint2*>(bias + at);
    const float2 low = unpack2(v.x), high = unpack2(v.y);
    offsets = {low.x, low.y, high.x, high.y};
  }

  __device__ __forceinline__ void fetch(int tile, int token, int item, int tokens) {
    before = {0u, 0u};
    if (!residual || token >= tokens) return;
    before = load_fresh2(residual + static_cast<size_t>(token) * residual_stride + tile * S::kRows +
                         item * 4);
  }

  __device__ __forceinline__ float act(float v) const {
    return activation == kGeluTanh ? gelu_tanh(v)
           : activation == kSilu   ? silu(v)
           : activation == kRelu   ? fmaxf(v, 0.0f)
                                   : v;
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    const float2 low = unpack2(before.x), high = unpack2(before.y);
    const uint2 after = {
        pack2(gates.x * act(v.x + offsets.x) + low.x, gates.y * act(v.y + offsets.y) + low.y),
        pack2(gates.z * act(v.z + offsets.z) + high.x, gates.w * act(v.w + offsets.w) + high.y)};
    *reinterpret_cast<uint2*>(y + static_cast<size_t>(token) * y_stride + tile * S::kRows + item * 4) =
        after;
  }
};

}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_FOUR_BIT_NORM(name, Shape, blocks)                                                 \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const flashrt::FourBitTile* weight,              \
           const float* weight_scale, const float* gain, const float* shift,                       \
           const flashrt::bf16* bias, flashrt::bf16* y, int tokens, int y_stride, int activation,  \
           float eps) {                                                                            \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, weight, weight_scale, nullptr, gain, shift, eps, tokens, 0, &x},                 \
        flashrt::FourBitOut<flashrt::Shape>{{}, y, bias, nullptr, nullptr, y_stride, 0,            \
                                            activation, {}, {}, {}});                              \
  }

#define FLASHRT_FOUR_BIT(name, Shape, blocks)                                                      \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const __grid_constant__ CUtensorMap x, const flashrt::FourBitTile* weight,              \
           const float* weight_scale, const flashrt::bf16* bias, const float* gate,                \
           const flashrt::bf16* residual, flashrt::bf16* y, int tokens, int y_stride,              \
           int residual_stride, int activation) {                                                  \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, 0, &x},           \
        flashrt::FourBitOut<flashrt::Shape>{{}, y, bias, residual, gate, y_stride,                 \
                                            residual_stride, activation, {}, {}, {}});             \
  }

namespace flashrt {

// Named for K, the rows of a block and the most tokens.
using NormFour3072x256x16 = FourBitShape<16, 4, 6, 4, 3, true>;
static_assert(NormFour3072x256x16::kSharedBytes == 115296, "as the launcher has it");
using NormFour3072x64x16 = FourBitShape<16, 1, 6, 4, 6, true>;
static_assert(NormFour3072x64x16::kSharedBytes == 70800, "as the launcher has it");
using NormFour3072x128x32 = FourBitShape<32, 2, 6, 4, 3, true>;
static_assert(NormFour3072x128x32::kSharedBytes == 110944, "as the launcher has it");
using NormFour3072x64x32 = FourBitShape<32, 1, 6, 4, 6, true>;
static_assert(NormFour3072x64x32::kSharedBytes == 100240, "as the launcher has it");
using Four3072x64x16 = FourBitShape<16, 1, 6, 4, 6, false>;
static_assert(Four3072x64x16::kSharedBytes == 54992, "as the launcher has it");
using Four3072x128x40 = FourBitShape<40, 2, 6, 4, 3, false>;
static_assert(Four3072x128x40::kSharedBytes == 109728, "as the launcher has it");
using Four3072x64x40 = FourBitShape<40, 1, 6, 4, 6, false>;
static_assert(Four3072x64x40::kSharedBytes == 98000, "as the launcher has it");
using Four14336x128x16 = FourBitShape<16, 2, 14, 8, 4, false>;
static_assert(Four14336x128x16::kSharedBytes == 105776, "as the launcher has it");
using Four14336x192x40 = FourBitShape<40, 3, 14, 8, 3, false>;
static_assert(Four14336x192x40::kSharedBytes == 221984, "as the launcher has it");

}  // namespace flashrt

FLASHRT_FOUR_BIT_NORM(layer_norm_linear_k3072_256_16_w4_sm90, NormFour3072x256x16, 2)
FLASHRT_FOUR_BIT_NORM(layer_norm_linear_k3072_64_16_w4_sm90, NormFour3072x64x16, 2)
FLASHRT_FOUR_BIT_NORM(layer_norm_linear_k3072_128_32_w4_sm90, NormFour3072x128x32, 2)
FLASHRT_FOUR_BIT_NORM(layer_norm_linear_k3072_64_32_w4_sm90, NormFour3072x64x32, 2)
FLASHRT_FOUR_BIT(linear_k3072_64_16_w4_sm90, Four3072x64x16, 2)
FLASHRT_FOUR_BIT(linear_k3072_128_40_w4_sm90, Four3072x128x40, 2)
FLASHRT_FOUR_BIT(linear_k3072_64_40_w4_sm90, Four3072x64x40, 2)
FLASHRT_FOUR_BIT(linear_k14336_128_16_w4_sm90, Four14336x128x16, 2)
FLASHRT_FOUR_BIT(linear_k14336_192_40_w4_sm90, Four14336x192x40, 1)
#endif
