// 16-byte loads of what passes through a chip once: weights, which nothing writes while stages run,
// and activations that other blocks have just written.
#pragma once

#include <cstdint>

#include "mma.cuh"
#include "vector.cuh"

namespace flashrt {

// Weights: past L1, and L2 fetches the whole 256 bytes around. Never moved behind pdl_wait().
__device__ __forceinline__ uint4 load_weights(const bf16* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint2 load_weights(const int8_t* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p));
  return v;
}

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

// Activations from L2, as a line that this multiprocessor read before may be stale in L1. `v` stays
// as it is unless `keep`.
__device__ __forceinline__ void load_fresh(uint4& v, const bf16* p, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
      "@p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
      : "l"(p), "r"(static_cast<uint32_t>(keep))
      : "memory");
}

__device__ __forceinline__ uint2 load_fresh2(const bf16* p) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_fresh1(const bf16* p) {
  uint32_t v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ float4 load_fresh4(const float* p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

__device__ __forceinline__ float2 load_fresh2(const float* p) {
  float2 v;
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ float load_fresh(const float* p) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
  return v;
}

// The dynamic shared memory of the block.
__device__ __forceinline__ unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char dynamic_shared_bytes[];
  return dynamic_shared_bytes;
}

// Stores unless `keep` is false, without a branch around them.
__device__ __forceinline__ void store_if(bool keep, bf16* p, uint32_t v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.u32 [%0], %1;\n}" ::"l"(p), "r"(v),
               "r"(static_cast<uint32_t>(keep))
               : "memory");
}

__device__ __forceinline__ void store_shared_if(bool keep, float* p, float2 v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.shared.v2.f32 [%0], {%1, %2};\n}" ::"r"(
                   shared_address(p)),
               "f"(v.x), "f"(v.y), "r"(static_cast<uint32_t>(keep))
               : "memory");
}

__device__ __forceinline__ void store_shared_if(bool keep, float* p, float v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.shared.f32 [%0], %1;\n}" ::"r"(
                   shared_address(p)),
               "f"(v), "r"(static_cast<uint32_t>(keep))
               : "memory");
}

// 2^x for x <= 0; results below the normal range are zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float2 unpack2(uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
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
    uint64_t clock;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
    signs = 0x80808080u + static_cast<uint32_t>(clock >> 63);
  }

  template <int kLow, int kHigh>
  __device__ __forceinline__ static uint32_t pair(uint32_t turned) {
    const uint32_t t = __byte_perm(turned, 0u, kLow | 4 << 4 | kHigh << 8 | 4 << 12);
    uint32_t v;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(t), "r"(0x7f007f00u), "r"(0xc000c000u));
    return v;
  }

  // Eight weights.
  __device__ __forceinline__ uint4 operator()(const uint2& whole) const {
    const uint32_t low = whole.x ^ signs, high = whole.y ^ signs;
    return {pair<0, 1>(low), pair<2, 3>(low), pair<0, 1>(high), pair<2, 3>(high)};
  }
  __device__ __forceinline__ uint4 operator()(const uint4& wide) const { return wide; }
};

// x + x s on two bf16 values at once, rounded once.
__device__ __forceinline__ uint32_t grow2(uint32_t x, uint32_t s) {
  uint32_t y;
  asm("fma.rn.bf16x2 %0, %1, %2, %1;" : "=r"(y) : "r"(x), "r"(s));
  return y;
}

}  // namespace flashrt
