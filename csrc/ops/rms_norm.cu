// rms_norm: y = x / sqrt(mean(x^2) + eps) * (1 + w), row by row
// x [M, D] bf16 or float32 (a residual stream), y [M, D] bf16, or E4M3 with a scale; rows x_stride /
// y_stride elements apart; w [D] float32; y may be x where both are bf16
// float32 throughout, one rounding
// needs D % 8 == 0, D <= 8192, 16-byte aligned rows; one block of D / 8 threads (whole warps) a row
// rms_norm_rows: y = act(the same), a warp a row: many narrow rows; act as in activation.cuh; D <= 1024; grid
// ceil(M / 8), 256 threads
// bound: memory, 4 M D bytes
#include "../common/activation.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/reduce.cuh"
#include "../common/vector.cuh"

namespace flashrt {

template <class T, class Out>
__device__ __forceinline__ void rms_norm(const T* x, const float* weight, Out* y,
                                         const float* y_scale, int width, int x_stride, int y_stride,
                                         float eps) {
  __shared__ float slots[32];
  pdl_trigger();
  const int column = threadIdx.x * 8;
  const bool inside = column < width;
  float gain[8], v[8] = {};
  if (inside) load8(weight + column, gain);
  const float factor = store_factor<Out>(y_scale);
  pdl_wait();
  if (inside) load8(x + static_cast<size_t>(blockIdx.x) * x_stride + column, v);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += v[i] * v[i];
  const float scale = rsqrtf(block_sum(squares, slots) / width + eps);
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = v[i] * scale * (1.0f + gain[i]);
  store8(y + static_cast<size_t>(blockIdx.x) * y_stride + column, v, factor);
}

template <class Out>
__device__ __forceinline__ void rms_norm_rows(const bf16* x, const float* weight, Out* y,
                                              const float* y_scale, int rows, int width, int x_stride,
                                              int y_stride, int activation, float eps) {
  constexpr int kTurns = 4;  // of 256 columns
  pdl_trigger();
  const int lane = threadIdx.x % 32, row = blockIdx.x * 8 + threadIdx.x / 32;
  const float factor = store_factor<Out>(y_scale);
  pdl_wait();
  if (row >= rows) return;
  float v[kTurns][8], squares = 0.0f;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int column = turn * 256 + lane * 8;
    if (column >= width) break;
    load8(x + static_cast<size_t>(row) * x_stride + column, v[turn]);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += v[turn][i] * v[turn][i];
  }
  const float scale = rsqrtf(warp_sum(squares) / width + eps);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int column = turn * 256 + lane * 8;
    if (column >= width) break;
    float gain[8];
    load8(weight + column, gain);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[turn][i] = activate(activation, v[turn][i] * scale * (1.0f + gain[i]));
    }
    store8(y + static_cast<size_t>(row) * y_stride + column, v[turn], factor);
  }
}

}  // namespace flashrt

#define FLASHRT_RMS_NORM_ROWS(name, Out)                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const flashrt::bf16* x, const float* weight, Out* y, const float* y_scale, int rows,    \
           int width, int x_stride, int y_stride, int activation, float eps) {                     \
    flashrt::rms_norm_rows(x, weight, y, y_scale, rows, width, x_stride, y_stride, activation,     \
                           eps);                                                                   \
  }

FLASHRT_RMS_NORM_ROWS(rms_norm_rows_bf16, flashrt::bf16)
FLASHRT_RMS_NORM_ROWS(rms_norm_rows_fp8, flashrt::e4m3)

#define FLASHRT_RMS_NORM(name, In, Out)                                                            \
  extern "C" __global__ void __launch_bounds__(1024)                                               \
      name(const In* x, const float* weight, Out* y, const float* y_scale, int width,              \
           int x_stride, int y_stride, float eps) {                                                \
    flashrt::rms_norm(x, weight, y, y_scale, width, x_stride, y_stride, eps);                      \
  }

FLASHRT_RMS_NORM(rms_norm_bf16, flashrt::bf16, flashrt::bf16)
FLASHRT_RMS_NORM(rms_norm_f32_bf16, float, flashrt::bf16)
FLASHRT_RMS_NORM(rms_norm_bf16_fp8, flashrt::bf16, flashrt::e4m3)
FLASHRT_RMS_NORM(rms_norm_f32_fp8, float, flashrt::e4m3)
