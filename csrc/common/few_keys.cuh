// Attention of 16 rows of one head over at most kKeys keys, with queries, keys and values in shared memory,
// kPitch elements a row: a warp has the scores of all keys and some columns of the values. So warps that
// have other columns do the scores again, but have nothing to join.
#pragma once

#include "activation.cuh"
#include "mma.cuh"
#include "quantise.cuh"
#include "vector.cuh"

namespace flashrt {

// Of heads of kDim, kColumns columns a warp.
template <int kDim, int kKeys, int kColumns, int kPitch>
struct FewKeys {
  static_assert(kDim % 16 == 0 && kKeys % 16 == 0 && kColumns % 16 == 0, "whole products");
  static constexpr int kSteps = kDim / 16, kTiles = kKeys / 16;

  float mixed[kColumns / 8][4] = {};  // of rows lane / 4 and eight further down, columns in pairs

  // Keys from `count` on do not count; their values are numbers. From column `first` on.
  __device__ __forceinline__ void run(const bf16* queries, const bf16* keys, const bf16* values, int count,
                                      float scale_log2, int first) {
    const int lane = threadIdx.x % 32;
    float s[2 * kTiles][4] = {};
    uint32_t q[kSteps][4];
    const bf16* p = queries + lane % 16 * kPitch + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) ldmatrix_x4(q[k], shared_address(p + k * 16));
    p = keys + (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        uint32_t b[4];
        ldmatrix_x4(b, shared_address(p + tile * 16 * kPitch + k * 16));
        mma_k16(s[2 * tile], q[k], b[0], b[1]);
        mma_k16(s[2 * tile + 1], q[k], b[2], b[3]);
      }
    }
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool counts = n * 8 + lane % 4 * 2 + i % 2 < count;
        s[n][i] = counts ? s[n][i] * scale_log2 : -INFINITY;
        top[i / 2] = fmaxf(top[i / 2], s[n][i]);
      }
    }
    over_four(top, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int n = 0; n < 2 * kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_flushed(s[n][i] - top[i / 2]);
        sum[i / 2] += s[n][i];
      }
    }
    p = values + lane % 16 * kPitch + lane / 16 * 8 + first;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float* left = s[2 * tile];
      const float* right = s[2 * tile + 1];
      const uint32_t a[4] = {pack2(left[0], left[1]), pack2(left[2], left[3]),
                             pack2(right[0], right[1]), pack2(right[2], right[3])};
#pragma unroll
      for (int n = 0; n < kColumns / 8; n += 2) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, shared_address(p + tile * 16 * kPitch + n * 8));
        mma_k16(mixed[n], a, b[0], b[1]);
        mma_k16(mixed[n + 1], a, b[2], b[3]);
      }
    }
    over_four(sum, [](float a, float b) { return a + b; });
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mixed[n][i] *= 1.0f / sum[i / 2];
    }
  }

  // To where row 0 and column `first` go, of `rows`; factor as store_factor() gives it.
  template <class Out>
  __device__ __forceinline__ void store(Out* out, int out_stride, int rows, float factor) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane / 4;
      if (row >= rows) continue;
      Out* first = out + static_cast<size_t>(row) * out_stride + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        store2(first + n * 8, mixed[n][2 * half], mixed[n][2 * half + 1], factor);
      }
    }
  }

 private:
  // Over the four lanes that share two rows.
  template <class Join>
  __device__ __forceinline__ static void over_four(float (&v)[2], Join join) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      v[half] = join(v[half], __shfl_xor_sync(0xffffffffu, v[half], 1));
      v[half] = join(v[half], __shfl_xor_sync(0xffffffffu, v[half], 2));
    }
  }
};

}  // namespace flashrt
