#pragma once

#include "cuda_runtime.h"

struct __half_raw {
  unsigned short x;
};
struct __half2_raw {
  unsigned short x, y;
};
struct __half {
  unsigned short bits;
  __half() = default;
  __half(float v) : bits(emulator::round_half(v)) {}
  __half(const __half_raw& raw) : bits(raw.x) {}
  operator float() const { return emulator::wide_half(bits); }
};
struct __attribute__((aligned(4))) __half2 {
  __half x, y;
  __half2() = default;
  __half2(__half low, __half high) : x(low), y(high) {}
  __half2(const __half2_raw& raw) : x(__half_raw{raw.x}), y(__half_raw{raw.y}) {}
};
using half = __half;
using half2 = __half2;

inline float __half2float(__half v) { return v; }
inline __half __float2half_rn(float v) { return v; }
inline __half __float2half(float v) { return v; }
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline __half2 __floats2half2_rn(float low, float high) { return {__half(low), __half(high)}; }
