#pragma once

#include "cuda_runtime.h"

struct __nv_bfloat16_raw {
  unsigned short x;
};
struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float v) : bits(emulator::round_bf16(v)) {}
  __nv_bfloat16(const __nv_bfloat16_raw& raw) : bits(raw.x) {}
  operator float() const { return emulator::wide_bf16(bits); }
};
struct __attribute__((aligned(4))) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {low, high}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 v) { return {v, v}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16_raw{v}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
// x y + z, rounded once.
inline __nv_bfloat16 __hfma(__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
  return static_cast<float>(fma(static_cast<double>(x), static_cast<double>(y), static_cast<double>(z)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
  return {__hfma(x.x, y.x, z.x), __hfma(x.y, y.y, z.y)};
}
inline __nv_bfloat162 __hmul2(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {static_cast<float>(x.x) * static_cast<float>(y.x), static_cast<float>(x.y) * static_cast<float>(y.y)};
}
inline __nv_bfloat162 __hadd2(__nv_bfloat162 x, __nv_bfloat162 y) {
  return {static_cast<float>(x.x) + static_cast<float>(y.x), static_cast<float>(x.y) + static_cast<float>(y.y)};
}
