// geglu_rows: out = gelu_tanh(gate) * up of interleaved columns (gate_0, up_0, gate_1, ..)
// x [M, 2F] bf16, out [M, F] bf16, rows x_stride / out_stride elements apart; float32, one rounding
// needs F % 8 == 0, 16-byte aligned rows; grid (ceil(F / 8 / threads), M)
// bound: memory, 6 M F bytes
#include "../common/activation.cuh"
#include "../common/pdl.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(256)
    geglu_rows_bf16(const bf16* x, bf16* out, int width, int x_stride, int out_stride) {
  pdl_trigger();
  pdl_wait();
  const int column = (blockIdx.x * blockDim.x + threadIdx.x) * 8;
  if (column >= width) return;
  const bf16* source = x + static_cast<size_t>(blockIdx.y) * x_stride + 2 * column;
  float low[8], high[8], v[8];
  load8(source, low);
  load8(source + 8, high);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = gelu_tanh(low[2 * i]) * low[2 * i + 1];
    v[4 + i] = gelu_tanh(high[2 * i]) * high[2 * i + 1];
  }
  store8(out + static_cast<size_t>(blockIdx.y) * out_stride + column, v);
}
