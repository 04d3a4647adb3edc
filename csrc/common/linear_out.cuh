// What a product of few rows leaves: y = act(v + b) + residual, or gate act(v + b) + residual; one
// rounding into y, and what is added is fetched while the sums still come.
#pragma once

#include "activation.cuh"
#include "few_rows_product_sm90.cuh"

namespace flashrt {

template <class S>
struct LinearOut : NeighbourRows<S> {
  static constexpr bool kFetches = true;

  bf16* y;
  const bf16 *bias, *residual;
  int y_stride, residual_stride, activation;
  float4 offsets;
  uint2 before;

  __device__ __forceinline__ void prepare(int tile, int item) {
    offsets = {0.0f, 0.0f, 0.0f, 0.0f};
    if (!bias) return;
    const uint2 v = *reinterpret_cast<const uint2*>(bias + tile * S::kRows + item * 4);
    const float2 low = unpack2(v.x), high = unpack2(v.y);
    offsets = {low.x, low.y, high.x, high.y};
  }

  __device__ __forceinline__ void fetch(int tile, int token, int item, int tokens) {
    before = {0u, 0u};
    if (!residual || token >= tokens) return;
    before = load_fresh2(residual + static_cast<size_t>(token) * residual_stride + tile * S::kRows +
                         item * 4);
  }

  __device__ __forceinline__ float act(float v) const {
    return activation == kGeluTanh ? gelu_tanh(v)
           : activation == kSilu   ? silu(v)
           : activation == kRelu   ? fmaxf(v, 0.0f)
                                   : v;
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    const float2 low = unpack2(before.x), high = unpack2(before.y);
    const uint2 after = {pack2(act(v.x + offsets.x) + low.x, act(v.y + offsets.y) + low.y),
                         pack2(act(v.z + offsets.z) + high.x, act(v.w + offsets.w) + high.y)};
    *reinterpret_cast<uint2*>(y + static_cast<size_t>(token) * y_stride + tile * S::kRows + item * 4) =
        after;
  }
};

template <class S>
struct GatedLinearOut : LinearOut<S> {
  const float* gate;  // or null: 1
  float4 gates;

  __device__ __forceinline__ void prepare(int tile, int item) {
    LinearOut<S>::prepare(tile, item);
    gates = {1.0f, 1.0f, 1.0f, 1.0f};
    if (gate) gates = *reinterpret_cast<const float4*>(gate + tile * S::kRows + item * 4);
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    const auto& o = this->offsets;
    const float2 low = unpack2(this->before.x), high = unpack2(this->before.y);
    const uint2 after = {
        pack2(gates.x * this->act(v.x + o.x) + low.x, gates.y * this->act(v.y + o.y) + low.y),
        pack2(gates.z * this->act(v.z + o.z) + high.x, gates.w * this->act(v.w + o.w) + high.y)};
    *reinterpret_cast<uint2*>(this->y + static_cast<size_t>(token) * this->y_stride + tile * S::kRows +
                              item * 4) = after;
  }
};

}  // namespace flashrt
