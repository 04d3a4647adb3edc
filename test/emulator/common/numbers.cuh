// As csrc/common/numbers.cuh.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace flashrt {

inline float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

inline float exp2_flushed(float x) { return flushed(exp2f(flushed(x))); }
inline float reciprocal_flushed(float x) { return flushed(1.0f / flushed(x)); }

inline uint32_t fma2(uint32_t x, uint32_t y, uint32_t z) {
  const auto one = [&](int shift) -> uint32_t {
    const auto of = [&](uint32_t v) { return __ushort_as_bfloat16(static_cast<unsigned short>(v >> shift)); };
    return static_cast<uint32_t>(__hfma(of(x), of(y), of(z)).bits) << shift;
  };
  return one(0) | one(16);
}

inline float select(bool first, float a, float b) { return first ? a : b; }
inline uint32_t late_zero() { return 0; }
inline void settle(float&) {}
inline void settle(uint32_t&) {}
inline void settle(uint32_t (&)[4]) {}
inline void settle_sum(uint64_t&) {}

}  // namespace flashrt
