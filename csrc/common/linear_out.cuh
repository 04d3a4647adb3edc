// What a product of few rows leaves: y = act(v + b) + residual, or gate act(v + b) + residual; one rounding into
// y, bf16 or E4M3 with a scale, and what is added is fetched while the sums still come. And sums of squares of y,
// for the kernel behind, which has norms of whole rows in front.
#pragma once

#include "activation.cuh"
#include "few_rows_product_sm90.cuh"
#include "quantise.cuh"
#include "row_moments.cuh"

namespace flashrt {

template <class S, class Out = bf16>
struct LinearOut : NeighbourRows<S> {
  static constexpr bool kFetches = true;

  Out* y;
  const bf16 *bias, *residual;
  int y_stride, residual_stride, activation;
  float4 offsets;
  uint2 before;
  const float* out_scale = nullptr;  // [1], of E4M3
  float factor = 1.0f;

  __device__ __forceinline__ void prepare(int tile, int item) {
    factor = store_factor<Out>(out_scale);
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

  // act(v + b): which act is asked once, so that the four numbers are made side by side.
  __device__ __forceinline__ float4 acted(float4 v) const {
    v = {v.x + offsets.x, v.y + offsets.y, v.z + offsets.z, v.w + offsets.w};
    if (activation == kGeluTanh) return {gelu_tanh(v.x), gelu_tanh(v.y), gelu_tanh(v.z), gelu_tanh(v.w)};
    if (activation == kSilu) return {silu(v.x), silu(v.y), silu(v.z), silu(v.w)};
    if (activation == kRelu) {
      return {fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f)};
    }
    return v;
  }

  __device__ __forceinline__ uint2 rounded(float4 v) const {
    const float2 low = unpack2(before.x), high = unpack2(before.y);
    v = acted(v);
    return {pack2(v.x + low.x, v.y + low.y), pack2(v.z + high.x, v.w + high.y)};
  }
  __device__ __forceinline__ void store(int tile, int token, int item, uint2 after) const {
    *reinterpret_cast<uint2*>(y + static_cast<size_t>(token) * y_stride + tile * S::kRows + item * 4) =
        after;
  }
  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    if constexpr (sizeof(Out) == 2) {
      store(tile, token, item, rounded(v));
    } else {
      const float2 low = unpack2(before.x), high = unpack2(before.y);
      v = acted(v);
      const uint32_t after = quantise4((v.x + low.x) * factor, (v.y + low.y) * factor,
                                       (v.z + high.x) * factor, (v.w + high.y) * factor);
      Out* target = y + static_cast<size_t>(token) * y_stride + tile * S::kRows + item * 4;
      *reinterpret_cast<uint32_t*>(target) = after;
    }
  }
};

// By tokens (few_rows_by_tokens.cuh), and moments of y for a norm behind (row_moments.cuh), or null.
template <class S>
struct MomentsOut : LinearOut<S> {
  float* moments;

  __device__ __forceinline__ void finish_row(int tile, int token, int item, float4 v, bool there) const {
    uint2 after = {0u, 0u};
    if (there) {
      after = this->rounded(v);
      this->store(tile, token, item, after);
    }
    if (!moments) return;
    const float2 low = unpack2(after.x), high = unpack2(after.y);
    const float2 pair = slab_moments<S::kLanes, S::kRows>({low.x, low.y, high.x, high.y}, there);
    if (!there || item > 0) return;
    *reinterpret_cast<float2*>(moments + (token * kMostSlabs + tile) * 2) = pair;
  }
};

constexpr int common_divisor(int a, int b) { return b == 0 ? a : common_divisor(b, a % b); }

// y = v + b, and squares [A, runs] float32: of each row the sum of squares of every run of kRun items of y, of
// the first `runs` of them. A run lies within a block's items and within K columns.
template <class S>
struct SquaresOut : LinearOut<S> {
  static constexpr int kRun = common_divisor(S::kOwn, S::kInner / 4), kRuns = S::kOwn / kRun;
  static_assert(S::kSplit > 1 && !S::kOwnStays, "a thread's item has a place where its sums came");

  float* squares;
  int runs;

  // Where the pushes of this item from the first block came: nobody else reads them.
  __device__ __forceinline__ static float* place(int token, int own) {
    return reinterpret_cast<float*>(dynamic_shared() + S::kReceived) + (token * S::kOwn + own) * 4;
  }

  __device__ __forceinline__ void finish(int tile, int token, int item, float4 v) const {
    const uint2 after = this->rounded(v);
    this->store(tile, token, item, after);
    const float2 low = unpack2(after.x), high = unpack2(after.y);
    *place(token, item % S::kOwn) = low.x * low.x + low.y * low.y + high.x * high.x + high.y * high.y;
  }

  // Once all items of the block are finished.
  __device__ __forceinline__ void leave_squares(int tokens) const {
    const int first = (blockIdx.x / S::kSplit * S::kSplit + cluster_rank()) * kRuns;
    for (int i = threadIdx.x; i < tokens * kRuns; i += S::kThreads) {
      const int token = i / kRuns, run = i % kRuns;
      float sum = 0.0f;
#pragma unroll
      for (int item = 0; item < kRun; ++item) sum += *place(token, run * kRun + item);
      if (first + run < runs) squares[token * runs + first + run] = sum;
    }
  }
};

template <class S>
__device__ __forceinline__ void few_rows_squares(const FewRowsInput<typename S::Weight>& input,
                                                 SquaresOut<S> op) {
  typename S::template Product<SquaresOut<S>>(input, op).run();
  __syncthreads();
  op.leave_squares(input.tokens);
}

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
    const float2 low = unpack2(this->before.x), high = unpack2(this->before.y);
    v = this->acted(v);
    this->store(tile, token, item, {pack2(fmaf(gates.x, v.x, low.x), fmaf(gates.y, v.y, low.y)),
                                    pack2(fmaf(gates.z, v.z, high.x), fmaf(gates.w, v.w, high.y))});
  }
};

}  // namespace flashrt
