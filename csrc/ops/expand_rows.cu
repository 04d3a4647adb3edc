// expand_rows: out[r, c] = weight[r, c] * scale[r], 8-bit numbers of a packed weight as bf16
// weight [N, K] int8 or E4M3 and out [N, K] bf16 without gaps; scale [N] float32; one rounding
// of four bits: (n - 8) * scale of the run of columns, both in rows, or in tiles of 64 rows
// (flashrt_core/kernels/four_bits.py)
// needs K % 8 == 0, runs of a multiple of 8, out 16-byte and weight 8-byte aligned, of four bits 4-byte;
// grid ceil(N K / 8 / 256)
// bound: memory, 3 N K bytes; 2.5 of four bits
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

// Eight columns of a row.
__device__ __forceinline__ void expand_four_bits(const uint8_t* weight, const float* scale, bf16* out,
                                                 int depth, int count, int run, int tiles) {
  pdl_trigger();
  const int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) {
    pdl_wait();
    return;
  }
  const int row = at / (depth / 8), column = at % (depth / 8) * 8, runs = depth / run;
  float v[8], factor;
  if (tiles) {
    const size_t tile = static_cast<size_t>(row / 64) * (depth / 64) + column / 64;
    const int thread = row % 64 / 16 * 32 + row % 16 / 2 * 4;
    const uint8_t* p = weight + tile * 2048 + thread * 16 + column % 64 / 16 * 4 + column / 8 % 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = static_cast<float>(p[i / 2 * 16 + i % 2 * 2] >> row % 2 * 4 & 15);
    factor = scale[(static_cast<size_t>(row / 64) * runs + column / run) * 64 + row % 64];
  } else {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(weight + static_cast<size_t>(at) * 4);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = static_cast<float>(word >> 4 * i & 15);
    factor = scale[static_cast<size_t>(row) * runs + column / run];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = (v[i] - 8.0f) * factor;
  pdl_wait();
  store8(out + static_cast<size_t>(at) * 8, v);
}

}  // namespace flashrt

#define FLASHRT_EXPAND_ROWS(name, T)                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const T* weight, const float* scale, flashrt::bf16* out, int depth, int count) {        \
    flashrt::expand_rows(weight, scale, out, depth, count);                                        \
  }

FLASHRT_EXPAND_ROWS(expand_rows_i8, int8_t)
FLASHRT_EXPAND_ROWS(expand_rows_e4m3, flashrt::e4m3)

extern "C" __global__ void __launch_bounds__(256)
    expand_rows_w4(const uint8_t* weight, const float* scale, flashrt::bf16* out, int depth, int count,
                   int run, int tiles) {
  flashrt::expand_four_bits(weight, scale, out, depth, count, run, tiles);
}
