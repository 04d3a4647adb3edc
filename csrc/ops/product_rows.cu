// product_rows: out = act(x + bias) + (accumulate ? out : 0), act none or gelu_tanh: what a library
// product cannot do in its own epilogue, or not as fast
// x [M, N] bf16, its product; bias [N] bf16, or null; out [M, N] bf16, float32, or E4M3 with a scale
// (not accumulated); rows x_stride / out_stride elements apart
// float32, one rounding
// needs N % 8 == 0, 16-byte aligned rows (8 for E4M3); grid (ceil(N / 8 / threads), M)
// bound: memory, M N (2 + bytes of out, twice where accumulated) bytes
#include "../common/activation.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"

namespace flashrt {

template <class Out>
__device__ __forceinline__ void product_rows(const bf16* x, const bf16* bias, Out* out,
                                             const float* out_scale, int width, int x_stride,
                                             int out_stride, int gelu, int accumulate) {
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
  if (gelu) {
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

#define FLASHRT_PRODUCT_ROWS(name, Out)                                                            \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const flashrt::bf16* x, const flashrt::bf16* bias, Out* out, const float* out_scale,    \
           int width, int x_stride, int out_stride, int gelu, int accumulate) {                    \
    flashrt::product_rows(x, bias, out, out_scale, width, x_stride, out_stride, gelu, accumulate); \
  }

FLASHRT_PRODUCT_ROWS(product_rows_bf16, flashrt::bf16)
FLASHRT_PRODUCT_ROWS(product_rows_f32, float)
FLASHRT_PRODUCT_ROWS(product_rows_fp8, flashrt::e4m3)
