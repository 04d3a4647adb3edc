// 16-byte loads and stores of bf16 rows, and conversions.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace flashrt {

using bf16 = __nv_bfloat16;
using bf16x2 = __nv_bfloat162;

// Eight bf16 values as they lie in memory.
union Pack8 {
  uint4 bits;
  bf16x2 pair[4];
};

// Eight consecutive bf16 values as float32; p is 16-byte aligned.
__device__ __forceinline__ void load8(const bf16* p, float (&v)[8]) {
  Pack8 pack;
  pack.bits = *reinterpret_cast<const uint4*>(p);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __bfloat1622float2(pack.pair[i]);
    v[2 * i] = two.x;
    v[2 * i + 1] = two.y;
  }
}

// Eight consecutive float32 values; p is 16-byte aligned.
__device__ __forceinline__ void load8(const float* p, float (&v)[8]) {
  const float4 low = reinterpret_cast<const float4*>(p)[0];
  const float4 high = reinterpret_cast<const float4*>(p)[1];
  v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
  v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
}

// Rounds eight float32 values to bf16 and stores them; p is 16-byte aligned.
__device__ __forceinline__ void store8(bf16* p, const float (&v)[8]) {
  Pack8 pack;
#pragma unroll
  for (int i = 0; i < 4; ++i) pack.pair[i] = __floats2bfloat162_rn(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<uint4*>(p) = pack.bits;
}

// Stores eight float32 values; p is 16-byte aligned.
__device__ __forceinline__ void store8(float* p, const float (&v)[8]) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// Two float32 values rounded to bf16, the first in the low half.
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  const bf16x2 two = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&two);
}

}  // namespace flashrt
