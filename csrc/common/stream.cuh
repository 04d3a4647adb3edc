// What the kernels that read weights once have in common: pieces of them, and how they become bf16.
#pragma once

#include <cstdint>

#include "memory.cuh"
#include "mma.cuh"
#include "numbers.cuh"
#include "vector.cuh"

namespace flashrt {

// Eight neighbours in a row of weights, as they lie in memory.
template <class W>
struct WeightPieceOf;
template <>
struct WeightPieceOf<bf16> {
  using Type = uint4;
};
template <>
struct WeightPieceOf<int8_t> {
  using Type = uint2;
};
template <class W>
using WeightPiece = typename WeightPieceOf<W>::Type;

// The dynamic shared memory of the block.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
  return dynamic_shared_bytes;
}

// 2^x for x <= 0; results below the normal range are zero.
__device__ __forceinline__ float exp2_fast(float x) { return exp2_flushed(x); }

__device__ __forceinline__ float2 unpack2(uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}
__device__ __forceinline__ void unpack8(const uint4& words, float (&v)[8]) {
  const float2 a = unpack2(words.x), b = unpack2(words.y), c = unpack2(words.z), d = unpack2(words.w);
  v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y, v[4] = c.x, v[5] = c.y, v[6] = d.x, v[7] = d.y;
}

// How int8 becomes bf16, exactly, over 64: the values 0 .. 255 in the low bits of a bf16 stand for that
// many times 2^-133, as the smallest normal numbers follow the subnormal ones without a step. With its
// sign bit turned a byte is 128 + v; times 2^127, less 2, that is v / 64. Two values take a byte
// permutation and a multiplication.
//
// The sign bits hold a zero that only the clock knows: what is made of them cannot be scheduled before
// loads that the program has in front.
struct Widening {
  static constexpr float kFactor = 64.0f;  // of the products that follow
  uint32_t signs;

  __device__ __forceinline__ void begin() {
    signs = 0x80808080u + late_zero();
  }

  template <int kLow, int kHigh>
  __device__ __forceinline__ static uint32_t pair(uint32_t turned) {
    const uint32_t t = __byte_perm(turned, 0u, kLow | 4 << 4 | kHigh << 8 | 4 << 12);
    return fma2(t, 0x7f007f00u, 0xc000c000u);
  }

  // Eight weights.
  __device__ __forceinline__ uint4 operator()(const uint2& whole) const {
    const uint32_t low = whole.x ^ signs, high = whole.y ^ signs;
    return {pair<0, 1>(low), pair<2, 3>(low), pair<0, 1>(high), pair<2, 3>(high)};
  }
  __device__ __forceinline__ uint4 operator()(const uint4& wide) const { return wide; }
};

// Four-bit weights 0 .. 15 as bf16, (n - 8) / 64, exactly and by the same means: a nibble in the low or
// the high half of a byte stands for n or 16 n times 2^-133. A word holds nibble i of a pair in bits 4 i
// and 16 + 4 i; the four pairs are an operand of a product (mma_k16's first).
struct FourBits {
  static constexpr float kFactor = 64.0f;  // of the products that follow

  __device__ __forceinline__ static uint32_t pair(uint32_t word, uint32_t mask, uint32_t factor) {
    return fma2(word & mask, factor, 0xbe00be00u);
  }

  __device__ __forceinline__ static void widen(uint32_t word, uint32_t (&v)[4]) {
    constexpr uint32_t kLow = 0x000f000fu, kHigh = 0x00f000f0u;
    v[0] = pair(word, kLow, 0x7f007f00u), v[1] = pair(word, kHigh, 0x7d007d00u);
    v[2] = pair(word >> 8, kLow, 0x7f007f00u), v[3] = pair(word >> 8, kHigh, 0x7d007d00u);
  }
};

// x + x s on two bf16 values at once, rounded once.
__device__ __forceinline__ uint32_t grow2(uint32_t x, uint32_t s) { return fma2(x, s, x); }

}  // namespace flashrt
