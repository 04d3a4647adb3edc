// Stores of float32 results as bf16, or as E4M3 with a scale: q = rne(clamp(v / scale, +-448)), NaN
// stays. A scale is a power of two, so that its inverse is exact.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "vector.cuh"

namespace flashrt {

struct e4m3 {
  uint8_t bits;
};

// What results are multiplied by before they are stored as T; reads the scale only where T has one.
// Scales are constants of a plan: nothing writes them while stages run, so nobody waits for them.
template <class T>
__device__ __forceinline__ float store_factor(const float* scale) {
  if constexpr (sizeof(T) == 1) return 1.0f / *scale;
  return 1.0f;
}

// Two values, already multiplied, as E4M3, the first in the low byte.
__device__ __forceinline__ uint16_t quantise2(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

__device__ __forceinline__ uint32_t quantise4(float a, float b, float c, float d) {
  return quantise2(a, b) | static_cast<uint32_t>(quantise2(c, d)) << 16;
}

__device__ __forceinline__ void store1(bf16* p, float v, float) { *p = __float2bfloat16_rn(v); }
__device__ __forceinline__ void store1(e4m3* p, float v, float factor) {
  p->bits = static_cast<uint8_t>(quantise2(v * factor, 0.0f));
}

// Two neighbours; p is aligned to both.
__device__ __forceinline__ void store2(bf16* p, float low, float high, float) {
  *reinterpret_cast<uint32_t*>(p) = pack2(low, high);
}
__device__ __forceinline__ void store2(e4m3* p, float low, float high, float factor) {
  *reinterpret_cast<uint16_t*>(p) = quantise2(low * factor, high * factor);
}

// Two neighbours as a word of T, and four words that follow each other; p is aligned to them.
template <class T>
__device__ __forceinline__ uint32_t word2(float low, float high, float factor) {
  if constexpr (sizeof(T) == 1) return quantise2(low * factor, high * factor);
  return pack2(low, high);
}
__device__ __forceinline__ void store_words(bf16* p, const uint32_t (&word)[4]) {
  *reinterpret_cast<uint4*>(p) = {word[0], word[1], word[2], word[3]};
}
__device__ __forceinline__ void store_words(e4m3* p, const uint32_t (&word)[4]) {
  *reinterpret_cast<uint2*>(p) = {word[0] | word[1] << 16, word[2] | word[3] << 16};
}

// Eight neighbours; p is aligned to them.
__device__ __forceinline__ void store8(bf16* p, const float (&v)[8], float) { store8(p, v); }
__device__ __forceinline__ void store8(float* p, const float (&v)[8], float) { store8(p, v); }
__device__ __forceinline__ void store8(e4m3* p, const float (&v)[8], float factor) {
  uint32_t word[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* four = v + 4 * i;
    word[i] = quantise4(four[0] * factor, four[1] * factor, four[2] * factor, four[3] * factor);
  }
  *reinterpret_cast<uint2*>(p) = {word[0], word[1]};
}

}  // namespace flashrt
