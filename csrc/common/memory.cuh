// Loads and stores by instructions of their own: past caches, without a branch, or by a number as address.
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

__device__ __forceinline__ void load_fresh(uint2& v, const bf16* p, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
      "@p ld.global.cg.v2.u32 {%0, %1}, [%2];\n}"
      : "+r"(v.x), "+r"(v.y)
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

// Sixteen zeros at an address of shared memory.
__device__ __forceinline__ void clear_shared16(uint32_t at) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
}

// Addresses of global memory as numbers; the compiler takes a pointer made of one for generic.
__device__ __forceinline__ void load_at(uint64_t from, uint4& v) {
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
}
__device__ __forceinline__ void load_at(uint64_t from, uint32_t& v) {
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(from));
}
__device__ __forceinline__ void store_at(uint64_t to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void store_at(uint64_t to, uint32_t v) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void store_at(uint64_t to, uint16_t v) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory");
}

// A byte takes the register of two.
struct OneByte {
  uint16_t held;
};
__device__ __forceinline__ void load_at(uint64_t from, OneByte& v) {
  asm volatile("ld.global.u8 %0, [%1];" : "=h"(v.held) : "l"(from));
}
__device__ __forceinline__ void store_at(uint64_t to, OneByte v) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "h"(v.held) : "memory");
}

}  // namespace flashrt
