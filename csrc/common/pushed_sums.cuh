// What the blocks of a cluster push to each other of sums that one of them finishes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cluster.cuh"
#include "quantise.cuh"
#include "stream.cuh"
#include "vector.cuh"

namespace flashrt {

// Four sums as float32.
struct WideSums {
  static constexpr int kBytes = 16;
  __device__ __forceinline__ static void send(uint32_t to, uint32_t barrier, const float4& v,
                                              bool keep = true) {
    push(to, barrier, v, keep);
  }
  __device__ __forceinline__ static void leave(void* p, const float4& v) {
    *reinterpret_cast<float4*>(p) = v;
  }
  __device__ __forceinline__ static float4 read(const void* p) {
    return *reinterpret_cast<const float4*>(p);
  }
};

// As bf16: the way between blocks takes as long as there are bytes.
struct NarrowSums {
  static constexpr int kBytes = 8;
  __device__ __forceinline__ static void send(uint32_t to, uint32_t barrier, const float4& v,
                                              bool keep = true) {
    push(to, barrier, float2{__uint_as_float(pack2(v.x, v.y)), __uint_as_float(pack2(v.z, v.w))}, keep);
  }
  __device__ __forceinline__ static void leave(void* p, const float4& v) {
    *reinterpret_cast<uint2*>(p) = {pack2(v.x, v.y), pack2(v.z, v.w)};
  }
  __device__ __forceinline__ static float4 read(const void* p) {
    const uint2 v = *reinterpret_cast<const uint2*>(p);
    const float2 low = unpack2(v.x), high = unpack2(v.y);
    return {low.x, low.y, high.x, high.y};
  }
};

// Of a product: narrow ones of E4M3 operands, whose own rounding has lost far more.
template <class Weight>
using PushedSums = std::conditional_t<std::is_same_v<Weight, e4m3>, NarrowSums, WideSums>;

}  // namespace flashrt
