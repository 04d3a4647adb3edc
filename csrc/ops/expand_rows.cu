// expand_rows: out[r, c] = weight[r, c] * scale[r], 8-bit numbers of a packed weight as bf16
// weight [N, K] int8 or E4M3 and out [N, K] bf16 without gaps; scale [N] float32; one rounding
// needs K % 8 == 0, out 16-byte and weight 8-byte aligned; grid ceil(N K / 8 / 256)
// bound: memory, 3 N K bytes
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"

namespace flashrt {

__device__ __forceinline__ void widen4(uint32_t word, float (&v)[8], int at, int8_t) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[at + i] = static_cast<int8_t>(word >> 8 * i);
}

__device__ __forceinline__ void widen4(uint32_t word, float (&v)[8], int at, e4m3) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half2_raw two = __nv_cvt_fp8x2_to_halfraw2(static_cast<uint16_t>(word >> 16 * i), __NV_E4M3);
    const float2 wide = __half22float2(__half2(two));
    v[at + 2 * i] = wide.x;
    v[at + 2 * i + 1] = wide.y;
  }
}

template <class T>
__device__ __forceinline__ void expand_rows(const T* weight, const float* scale, bf16* out,
                                            int depth, int count) {
  pdl_trigger();
  const int run = blockIdx.x * blockDim.x + threadIdx.x;
  if (run >= count) {
    pdl_wait();
    return;
  }
  // Weights and scales are constants of a plan: only what is written must wait.
  const size_t at = static_cast<size_t>(run) * 8;
  const uint2 words = *reinterpret_cast<const uint2*>(weight + at);
  const float factor = scale[at / depth];
  float v[8];
  widen4(words.x, v, 0, T{});
  widen4(words.y, v, 4, T{});
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= factor;
  pdl_wait();
  store8(out + at, v);
}

}  // namespace flashrt

#define FLASHRT_EXPAND_ROWS(name, T)                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const T* weight, const float* scale, flashrt::bf16* out, int depth, int count) {        \
    flashrt::expand_rows(weight, scale, out, depth, count);                                        \
  }

FLASHRT_EXPAND_ROWS(expand_rows_i8, int8_t)
FLASHRT_EXPAND_ROWS(expand_rows_e4m3, flashrt::e4m3)
