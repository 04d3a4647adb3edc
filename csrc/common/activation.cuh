// Activations in float32.
#pragma once

#include "numbers.cuh"

namespace flashrt {

// exp(-2u) of gelu_tanh below, as a power of two: -2 log2(e) sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kGeluLinear = -2.3022081981443250f, kGeluCubic = -0.1029432409f;

__device__ __forceinline__ float gelu_exponent(float x) {
  return x * (kGeluLinear + kGeluCubic * x * x);
}

// gelu_tanh(x) = x / 2 (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3).
// Written with exp so that the negative tail keeps its relative accuracy.
__device__ __forceinline__ float gelu_tanh(float x) {
  return x * reciprocal_flushed(1.0f + exp2_flushed(gelu_exponent(x)));
}

// exp(-x), as a power of two.
constexpr float kSiluLinear = -1.4426950408889634f;

__device__ __forceinline__ float silu(float x) {
  return x * reciprocal_flushed(1.0f + exp2_flushed(x * kSiluLinear));
}

// x / 2 (1 + erf(x / sqrt(2))), written so that the negative tail keeps its relative accuracy.
__device__ __forceinline__ float gelu(float x) { return 0.5f * x * erfcf(x * -0.70710678118654752f); }

// As launchers number them.
enum Activation : int { kNone = 0, kGeluTanh = 1, kGelu = 2, kSilu = 3, kRelu = 4 };

__device__ __forceinline__ float activate(int activation, float x) {
  switch (activation) {
    case kGeluTanh: return gelu_tanh(x);
    case kGelu: return gelu(x);
    case kSilu: return silu(x);
    case kRelu: return fmaxf(x, 0.0f);
    default: return x;
  }
}

}  // namespace flashrt
