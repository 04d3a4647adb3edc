// What the blocks of a cluster push to each other of sums that one of them finishes.
#pragma once

#include <cstdint>

#include "cluster.cuh"
#include "quantise.cuh"
#include "stream.cuh"
#include "vector.cuh"

namespace flashrt {

// Four sums: float32, or bf16 of E4M3 operands, whose own rounding has lost far more; the way between blocks
// takes as long as there are bytes.
template <class Weight>
struct PushedSums {
  static constexpr int kBytes = 16;
  __device__ __forceinline__ static void send(uint32_t to, uint32_t barrier, const float4& v) {
    push(to, barrier, v);
  }
  __device__ __forceinline__ static float4 read(const unsigned char* p) {
    return *reinterpret_cast<const float4*>(p);
  }
};
template <>
struct PushedSums<e4m3> {
  static constexpr int kBytes = 8;
  __device__ __forceinline__ static void send(uint32_t to, uint32_t barrier, const float4& v) {
    push(to, barrier, float2{__uint_as_float(pack2(v.x, v.y)), __uint_as_float(pack2(v.z, v.w))});
  }
  __device__ __forceinline__ static float4 read(const unsigned char* p) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    const float2 low = unpack2(v.x), high = unpack2(v.y);
    return {low.x, low.y, high.x, high.y};
  }
};

}  // namespace flashrt
