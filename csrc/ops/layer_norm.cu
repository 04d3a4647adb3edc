// layer_norm: y = (x - mean) / sqrt(var + eps) * w + b, row by row; w and b are 1 and 0 in the entries
// named _plain
// x [M, D] bf16 or float32 (a residual stream), y [M, D] bf16 or float32, or E4M3 with a scale; rows x_stride /
// y_stride elements apart; w, b [D] float32; y may be x where both have one format
// float32 throughout (mean first, then the squares of the differences), one rounding
// needs D % 8 == 0, D <= 8192, 16-byte aligned rows; one block of D / 8 threads (whole warps) a row
// bound: memory, 4 M D bytes
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/reduce.cuh"
#include "../common/vector.cuh"

namespace flashrt {

template <bool kAffine, class T, class Out>
__device__ __forceinline__ void layer_norm(const T* x, const float* weight, const float* bias,
                                           Out* y, const float* y_scale, int width, int x_stride,
                                           int y_stride, float eps) {
  __shared__ float slots[2][32];
  pdl_trigger();
  const int column = threadIdx.x * 8;
  const bool inside = column < width;
  float gain[8], offset[8], v[8] = {};
  if (kAffine && inside) {
    load8(weight + column, gain);
    load8(bias + column, offset);
  }
  const float factor = store_factor<Out>(y_scale);
  pdl_wait();
  if (inside) load8(x + static_cast<size_t>(blockIdx.x) * x_stride + column, v);
  const Moments moments = row_moments(v, inside, width, eps, slots);
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = (v[i] - moments.mean) * moments.factor;
    if constexpr (kAffine) v[i] = v[i] * gain[i] + offset[i];
  }
  store8(y + static_cast<size_t>(blockIdx.x) * y_stride + column, v, factor);
}

}  // namespace flashrt

#define FLASHRT_LAYER_NORM(name, kAffine, In, Out)                                                        \
  extern "C" __global__ void __launch_bounds__(1024)                                               \
      name(const In* x, const float* weight, const float* bias, Out* y, const float* y_scale,      \
           int width, int x_stride, int y_stride, float eps) {                                     \
    flashrt::layer_norm<kAffine>(x, weight, bias, y, y_scale, width, x_stride, y_stride, eps);              \
  }

FLASHRT_LAYER_NORM(layer_norm_bf16, true, flashrt::bf16, flashrt::bf16)
FLASHRT_LAYER_NORM(layer_norm_f32_bf16, true, float, flashrt::bf16)
FLASHRT_LAYER_NORM(layer_norm_bf16_fp8, true, flashrt::bf16, flashrt::e4m3)
FLASHRT_LAYER_NORM(layer_norm_f32_fp8, true, float, flashrt::e4m3)
FLASHRT_LAYER_NORM(layer_norm_plain_bf16, false, flashrt::bf16, flashrt::bf16)
FLASHRT_LAYER_NORM(layer_norm_plain_f32_bf16, false, float, flashrt::bf16)
FLASHRT_LAYER_NORM(layer_norm_plain_bf16_fp8, false, flashrt::bf16, flashrt::e4m3)
FLASHRT_LAYER_NORM(layer_norm_plain_f32_fp8, false, float, flashrt::e4m3)
FLASHRT_LAYER_NORM(layer_norm_f32_f32, true, float, float)
