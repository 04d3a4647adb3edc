// Formats of numbers: to float32, which holds all of them, and back with one rounding.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulator {

inline uint32_t bits_of(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}

inline float wide_bf16(uint16_t bits) { return float_of(static_cast<uint32_t>(bits) << 16); }

inline uint16_t round_bf16(float v) {
  if (v != v) return 0x7fff;
  const uint32_t bits = bits_of(v);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Rounded to a step of 2^-fraction of its power of two, or to that of `least`, ties to even.
inline float round_to(float v, int fraction, int least) {
  int exponent;
  std::frexp(v, &exponent);
  const int step = (exponent - 1 < least ? least : exponent - 1) - fraction;
  return std::ldexp(std::nearbyint(std::ldexp(v, -step)), step);
}

struct WideE4m3 {
  float of[256];

  WideE4m3() {
    for (int bits = 0; bits < 128; ++bits) {
      const int exponent = bits >> 3, fraction = bits & 7;
      of[bits] = exponent ? std::ldexp(1.0f + fraction / 8.0f, exponent - 7) : std::ldexp(fraction / 8.0f, -6);
      if (bits == 127) of[bits] = float_of(0x7fffffff);
      of[bits + 128] = -of[bits];
    }
  }
};
inline const WideE4m3 kWideE4m3;

inline float wide_e4m3(uint8_t bits) { return kWideE4m3.of[bits]; }

// Numbers beyond 448 become 448.
inline uint8_t round_e4m3(float v) {
  if (v != v) return 0x7f;
  const uint8_t sign = std::signbit(v) ? 128 : 0;
  const float size = std::fmin(round_to(std::fmin(std::fabs(v), 448.0f), 3, -6), 448.0f);
  if (size < std::ldexp(1.0f, -6)) return sign | static_cast<uint8_t>(std::ldexp(size, 9));
  int exponent;
  const float part = std::frexp(size, &exponent);
  const auto fraction = static_cast<uint8_t>((part * 2.0f - 1.0f) * 8.0f);
  return sign | static_cast<uint8_t>((exponent + 6) << 3) | fraction;
}

inline float wide_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = std::ldexp(fraction / 1024.0f, -14);
  if (exponent == 31) {
    size = fraction ? float_of(0x7fffffff) : INFINITY;
  } else if (exponent) {
    size = std::ldexp(1.0f + fraction / 1024.0f, exponent - 15);
  }
  return bits & 0x8000 ? -size : size;
}

inline uint16_t round_half(float v) {
  if (v != v) return 0x7fff;
  const uint16_t sign = std::signbit(v) ? 0x8000 : 0;
  const float size = round_to(std::fmin(std::fabs(v), 131072.0f), 10, -14);
  if (size > 65504.0f) return sign | 0x7c00;
  if (size < std::ldexp(1.0f, -14)) return sign | static_cast<uint16_t>(std::ldexp(size, 24));
  int exponent;
  const float part = std::frexp(size, &exponent);
  const auto fraction = static_cast<uint16_t>((part * 2.0f - 1.0f) * 1024.0f);
  return sign | static_cast<uint16_t>((exponent + 14) << 10) | fraction;
}

}  // namespace emulator
