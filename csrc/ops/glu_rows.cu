// glu_rows: out = act(gate) * up of interleaved columns, act gelu_tanh or silu (gate_0, up_0, gate_1, ..)
// x [M, 2F] bf16, out [M, F] bf16, or E4M3 with a scale; rows x_stride / out_stride elements apart
// column_scale [2F] float32 multiplies x first, or is null; float32, one rounding
// needs F % 8 == 0, 16-byte aligned rows; grid (ceil(F / 8 / threads), M)
// bound: memory, 6 M F bytes; 5 with E4M3
#include "../common/activation.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"

namespace flashrt {

__device__ __forceinline__ void load_scaled8(const bf16* x, const float* scales, float (&v)[8]) {
  load8(x, v);
  if (!scales) return;
  float s[8];
  load8(scales, s);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= s[i];
}

template <bool kSilu, class Out>
__device__ __forceinline__ void glu_rows(const bf16* x, const float* column_scale, Out* out,
                                         const float* out_scale, int width, int x_stride,
                                         int out_stride) {
  pdl_trigger();
  const float factor = store_factor<Out>(out_scale);
  pdl_wait();
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (column >= width) return;
  const bf16* source = x + static_cast<size_t>(blockIdx.y) * x_stride + 2 * column;
  const float* scales = column_scale ? column_scale + 2 * column : nullptr;
  float low[8], high[8], v[8];
  load_scaled8(source, scales, low);
  load_scaled8(source + 8, scales ? scales + 8 : nullptr, high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = (kSilu ? silu(low[2 * i]) : gelu_tanh(low[2 * i])) * low[2 * i + 1];
    v[4 + i] = (kSilu ? silu(high[2 * i]) : gelu_tanh(high[2 * i])) * high[2 * i + 1];
  }
  store8(out + static_cast<size_t>(blockIdx.y) * out_stride + column, v, factor);
}

}  // namespace flashrt

#define FLASHRT_GLU_ROWS(name, kSilu, Out)                                                         \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const flashrt::bf16* x, const float* column_scale, Out* out, const float* out_scale,    \
           int width, int x_stride, int out_stride) {                                              \
    flashrt::glu_rows<kSilu>(x, column_scale, out, out_scale, width, x_stride, out_stride);        \
  }

FLASHRT_GLU_ROWS(glu_rows_gelu_tanh_bf16, false, flashrt::bf16)
FLASHRT_GLU_ROWS(glu_rows_gelu_tanh_fp8, false, flashrt::e4m3)
FLASHRT_GLU_ROWS(glu_rows_silu_bf16, true, flashrt::bf16)
FLASHRT_GLU_ROWS(glu_rows_silu_fp8, true, flashrt::e4m3)
