// Moments of the rows of a residual stream, from the product that writes it to the kernel behind, which has
// a norm of whole rows in front: [rows, kMostSlabs, 2] float32, of each run of a row's columns, all as long,
// the mean and the sum of the squares of differences from it; eight slabs or a multiple. They are merged in a
// fixed order, and nothing is lost where a mean is far from 0 (Chan, Golub and LeVeque).
#pragma once

#include <cstdint>

#include "memory.cuh"
#include "reduce.cuh"

namespace flashrt {

constexpr int kMostSlabs = 32;

// The pair of kCount numbers that kLanes neighbours have together, four each where `there`. Sums are of
// differences from the first number.
template <int kLanes, int kCount>
__device__ __forceinline__ float2 slab_moments(const float4& v, bool there) {
  const float first = __shfl_sync(kAllLanes, v.x, 0, kLanes);
  const float4 d = {v.x - first, v.y - first, v.z - first, v.w - first};
  const float sum = lane_sum<kLanes>(there ? (d.x + d.y) + (d.z + d.w) : 0.0f);
  const float squares =
      lane_sum<kLanes>(there ? fmaf(d.x, d.x, d.y * d.y) + fmaf(d.z, d.z, d.w * d.w) : 0.0f);
  const float offset = sum * (1.0f / kCount);
  return {first + offset, fmaxf(squares - sum * offset, 0.0f)};
}

// A row's slabs in four neighbouring lanes: asked for early, merged when all else is under way.
class SlabMoments {
 public:
  // Of a row that there is.
  __device__ __forceinline__ void load(const float* moments, int slabs, int row) {
    const float* from = moments + row * (kMostSlabs * 2) + threadIdx.x % 4 * 4;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      pairs_[turn] = {0.0f, 0.0f, 0.0f, 0.0f};
      if (turn * kTurn < slabs) pairs_[turn] = load_fresh4(from + turn * kTurn * 2);
    }
  }

  // Mean of a row of `width`, and what differences from it are multiplied by; in all four lanes, where all
  // lanes of the warp come.
  __device__ __forceinline__ float2 merge(int slabs, int width, float eps) const {
    float total = 0.0f, inside = 0.0f, between = 0.0f;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      total += pairs_[turn].x + pairs_[turn].z;
      inside += pairs_[turn].y + pairs_[turn].w;
    }
    const float part = __fdividef(1.0f, static_cast<float>(slabs));
    const float mean = lane_sum<4>(total) * part;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const float a = pairs_[turn].x - mean, b = pairs_[turn].z - mean;
      if (turn * kTurn < slabs) between = fmaf(b, b, fmaf(a, a, between));
    }
    const float variance = lane_sum<4>(fmaf(between * part, static_cast<float>(width), inside)) / width;
    return {mean, rsqrtf(variance + eps)};
  }

 private:
  static constexpr int kTurn = 8, kTurns = kMostSlabs / kTurn;  // two slabs a lane and turn

  float4 pairs_[kTurns];
};

}  // namespace flashrt
