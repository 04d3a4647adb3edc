// ada_rms_norm: y = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift, row by row
// x, y [M, D] bf16, rows x_stride / y_stride elements apart; scale, shift [D] float32
// gated_residual: out += gate * x, column by column; x, out [M, D] bf16, gate [D] float32; or, in the entry
//               named _biased, out += gate * (scale x + b) with b [D] bf16 and scale [D] float32, or null
// float32 throughout, one rounding
// needs D % 8 == 0, D <= 8192, 16-byte aligned rows; one block of D / 8 threads (whole warps) a row
// bound: memory, 4 M D and 6 M D bytes
#include "../common/pdl.cuh"
#include "../common/reduce.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(1024)
    ada_rms_norm_bf16(const bf16* x, const float* scale, const float* shift, bf16* y, int width,
                      int x_stride, int y_stride, float eps) {
  __shared__ float slots[32];
  pdl_trigger();
  const int column = threadIdx.x * 8;
  const bool inside = column < width;
  float gain[8], offset[8], v[8] = {};
  if (inside) {
    load8(scale + column, gain);
    load8(shift + column, offset);
  }
  pdl_wait();
  if (inside) load8(x + static_cast<size_t>(blockIdx.x) * x_stride + column, v);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += v[i] * v[i];
  const float inverse = rsqrtf(block_sum(squares, slots) / width + eps);
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = v[i] * inverse * (1.0f + gain[i]) + offset[i];
  store8(y + static_cast<size_t>(blockIdx.x) * y_stride + column, v);
}

extern "C" __global__ void __launch_bounds__(1024)
    gated_residual_bf16(const bf16* x, const float* gate, bf16* out, int width, int x_stride,
                        int out_stride) {
  pdl_trigger();
  const int column = threadIdx.x * 8;
  if (column >= width) return;
  float g[8], branch[8], v[8];
  load8(gate + column, g);
  pdl_wait();
  bf16* row = out + static_cast<size_t>(blockIdx.x) * out_stride + column;
  load8(x + static_cast<size_t>(blockIdx.x) * x_stride + column, branch);
  load8(row, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] += g[i] * branch[i];
  store8(row, v);
}

extern "C" __global__ void __launch_bounds__(1024)
    gated_residual_biased_bf16(const bf16* x, const bf16* bias, const float* scale, const float* gate,
                               bf16* out, int width, int x_stride, int out_stride) {
  pdl_trigger();
  const int column = threadIdx.x * 8;
  if (column >= width) return;
  float g[8], b[8] = {}, s[8], branch[8], v[8];
  load8(gate + column, g);
  if (bias) load8(bias + column, b);
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i] = 1.0f;
  if (scale) load8(scale + column, s);
  pdl_wait();
  bf16* row = out + static_cast<size_t>(blockIdx.x) * out_stride + column;
  load8(x + static_cast<size_t>(blockIdx.x) * x_stride + column, branch);
  load8(row, v);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] += g[i] * (branch[i] * s[i] + b[i]);
  store8(row, v);
}
