// product_rows: out = act(x + bias) + (accumulate ? out : 0): what a library product cannot do in its
// own epilogue, or not as fast. act is none or gelu_tanh; the entries named _activated take any
// x [M, N] bf16, its product; bias [N] bf16, or null; out [M, N] bf16, float32, or E4M3 with a scale
// (not accumulated); rows x_stride / out_stride elements apart
// float32, one rounding
// needs N % 8 == 0, 16-byte aligned rows (8 for E4M3); grid (ceil(N / 8 / threads), M)
// bound: memory, M N (2 + bytes of out, twice where accumulated) bytes
#include "../common/activation.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"

namespace flashrt {

template <bool kAny, class Out>
__device__ __forceinline__ void product_rows(const bf16* x, const bf16* bias, Out* out,
                                             const float* out_scale, int width, int x_stride,
                                             int out_stride, int activation, int accumulate) {
  pdl_trigger();
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  const bool inside = column < width;
  const float factor = store_factor<Out>(out_scale);
  float offset[8] = {}, v[8];
  if (inside && bias) load8(bias + column, offset);
  pdl_wait();
  if (!inside) return;
  load8(x + static_cast<size_t>(blockIdx.y) * x_stride + column, v);
  Out* target = out + static_cast<size_t>(blockIdx.y) * out_stride + column;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] += offset[i];
  if constexpr (kAny) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = activate(activation, v[i]);
  } else if (activation) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = gelu_tanh(v[i]);
  }
  if constexpr (sizeof(Out) > 1) {
    if (accumulate) {
      float before[8];
      load8(target, before);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += before[i];
    }
  }
  store8(target, v, factor);
}

}  // namespace flashrt

#define FLASHRT_PRODUCT_ROWS(name, kAny, Out)                                                      \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const flashrt::bf16* x, const flashrt::bf16* bias, Out* out, const float* out_scale,    \
           int width, int x_stride, int out_stride, int activation, int accumulate) {              \
    flashrt::product_rows<kAny>(x, bias, out, out_scale, width, x_stride, out_stride, activation,  \
                                accumulate);                                                       \
  }

FLASHRT_PRODUCT_ROWS(product_rows_bf16, false, flashrt::bf16)
FLASHRT_PRODUCT_ROWS(product_rows_f32, false, float)
FLASHRT_PRODUCT_ROWS(product_rows_fp8, false, flashrt::e4m3)
FLASHRT_PRODUCT_ROWS(product_rows_activated_bf16, true, flashrt::bf16)
FLASHRT_PRODUCT_ROWS(product_rows_activated_f32, true, float)
FLASHRT_PRODUCT_ROWS(product_rows_activated_fp8, true, flashrt::e4m3)
