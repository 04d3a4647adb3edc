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
  using Packed = float4;
  __device__ __forceinline__ static void send(uint32_t to, uint32_t barrier, const float4& v) {
    push(to, barrier, v);
  }
  // Of two lanes side by side, which have two sums each of an upper row, y[0] and y[1], and of a lower one,
  // the first has four of the upper row in the end, the other of the lower.
  __device__ __forceinline__ static Packed row(const float* y, bool odd) {
    const float a = __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[2], 1);
    const float b = __shfl_xor_sync(0xffffffffu, odd ? y[1] : y[3], 1);
    return odd ? float4{a, b, y[2], y[3]} : float4{y[0], y[1], a, b};
  }
  __device__ __forceinline__ static float4 read(const void* p) {
    return *reinterpret_cast<const float4*>(p);
  }
};

// As bf16: the way between blocks takes as long as there are bytes.
struct NarrowSums {
  static constexpr int kBytes = 8;
  using Packed = float2;
  __device__ __forceinline__ static void send(uint32_t to, uint32_t barrier, const float4& v) {
    push(to, barrier, float2{__uint_as_float(pack2(v.x, v.y)), __uint_as_float(pack2(v.z, v.w))});
  }
  __device__ __forceinline__ static Packed row(const float* y, bool odd) {
    const float upper = __uint_as_float(pack2(y[0], y[1])), lower = __uint_as_float(pack2(y[2], y[3]));
    const float other = __shfl_xor_sync(0xffffffffu, odd ? upper : lower, 1);
    return odd ? float2{other, lower} : float2{upper, other};
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
