// gated_residual_norm: out += gate * (scale x + b), and row by row its layer norm:
// y = (out - mean) / sqrt(var + eps) * w + c
// x [M, D] bf16, a product; b [D] bf16, scale [D] float32, or null; gate, w, c [D] float32; out [M, D] bf16;
// y [M, D] bf16, or E4M3 with a scale; rows *_stride elements apart
// float32 throughout, one rounding into each; the norm is that of what was rounded
// needs D % 8 == 0, D <= 8192, 16-byte aligned rows; one block of D / 8 threads (whole warps) a row
// bound: memory, 8 M D bytes
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/reduce.cuh"
#include "../common/vector.cuh"

namespace flashrt {

template <class Out>
__device__ __forceinline__ void gated_residual_norm(const bf16* x, const bf16* bias, const float* scale,
                                                    const float* gate, bf16* out, const float* weight,
                                                    const float* offset, Out* y, const float* y_scale,
                                                    int width, int x_stride, int out_stride,
                                                    int y_stride, float eps) {
  __shared__ float slots[2][32];
  pdl_trigger();
  const int column = threadIdx.x * 8;
  const bool inside = column < width;
  const size_t row = blockIdx.x;
  float g[8], b[8] = {}, s[8], gain[8], shift[8], branch[8], v[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i] = 1.0f;
  if (inside) {
    load8(gate + column, g);
    if (bias) load8(bias + column, b);
    if (scale) load8(scale + column, s);
    load8(weight + column, gain);
    load8(offset + column, shift);
  }
  const float quantised = store_factor<Out>(y_scale);
  pdl_wait();
  if (inside) {
    load8(x + row * x_stride + column, branch);
    load8(out + row * out_stride + column, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = __bfloat162float(__float2bfloat16_rn(v[i] + g[i] * (branch[i] * s[i] + b[i])));
    }
    store8(out + row * out_stride + column, v);
  }
  const Moments moments = row_moments(v, inside, width, eps, slots);
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = (v[i] - moments.mean) * moments.factor * gain[i] + shift[i];
  store8(y + row * y_stride + column, v, quantised);
}

}  // namespace flashrt

#define FLASHRT_GATED_RESIDUAL_NORM(name, Out)                                                     \
  extern "C" __global__ void __launch_bounds__(1024)                                               \
      name(const flashrt::bf16* x, const flashrt::bf16* bias, const float* scale,                  \
           const float* gate, flashrt::bf16* out, const float* weight, const float* offset,        \
           Out* y, const float* y_scale, int width, int x_stride, int out_stride, int y_stride,    \
           float eps) {                                                                            \
    flashrt::gated_residual_norm(x, bias, scale, gate, out, weight, offset, y, y_scale, width,     \
                                 x_stride, out_stride, y_stride, eps);                             \
  }

FLASHRT_GATED_RESIDUAL_NORM(gated_residual_norm_bf16, flashrt::bf16)
FLASHRT_GATED_RESIDUAL_NORM(gated_residual_norm_fp8, flashrt::e4m3)
