// Arithmetic by instructions of their own, and values that the compiler may not see through.
#pragma once

#include <cstdint>

namespace flashrt {

// 2^x and 1 / x without the care for denormal numbers that exp2f and division take (a handful of
// instructions each); results below 2^-126 become 0.
__device__ __forceinline__ float exp2_flushed(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_flushed(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x y + z on two bf16 values at once, each rounded once.
__device__ __forceinline__ uint32_t fma2(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t v;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(v) : "r"(x), "r"(y), "r"(z));
  return v;
}

// A choice that stays one instruction: around shuffles the compiler would make two branches of it.
__device__ __forceinline__ float select(bool first, float a, float b) {
  float chosen;
  asm("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\nselp.f32 %0, %1, %2, p;\n}"
      : "=f"(chosen)
      : "f"(a), "f"(b), "r"(static_cast<uint32_t>(first)));
  return chosen;
}

// A zero that only the clock knows, not before what the program has in front.
__device__ __forceinline__ uint32_t late_zero() {
  uint64_t clock;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
  return static_cast<uint32_t>(clock >> 63);
}

// The value is made here, where the program has it, and lies in a register of its own from then on.
__device__ __forceinline__ void settle(float& v) { asm volatile("" : "+f"(v)); }
__device__ __forceinline__ void settle(uint32_t& v) { asm volatile("" : "+r"(v)); }
__device__ __forceinline__ void settle(uint32_t (&v)[4]) {
  asm volatile("" : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3]));
}

// What the compiler may move, but not make anew from what it was made of.
__device__ __forceinline__ void settle_sum(uint64_t& v) { asm("" : "+l"(v)); }

}  // namespace flashrt
