// Rows of a head that a product has just left, on their way into attention: divided by the root of the mean
// square of the head, or of the whole row, of which the product has left sums of squares of runs beside it.
//
// Eight threads have a row: each the numbers of eight columns and of their partners half a head further, with
// which they turn. So 128 threads take the 16 rows of a block at once, and wait for memory once.
#pragma once

#include <cstdint>

#include "numbers.cuh"
#include "stream.cuh"
#include "vector.cuh"

namespace flashrt {
namespace heads {

// Sums of squares [rows, stride] of runs of whole rows, the first `runs` of which count: a multiple of four,
// at most 128. gain [H d]; share 1 / H d.
struct RowNorm {
  const float *squares, *gain;
  int runs, stride;
  float share, eps;
};

template <int kDim_, int kPitch_>
struct HeadRows {
  static constexpr int kDim = kDim_, kPitch = kPitch_;
  static_assert(kDim == 128, "eight columns and their partners");

  // Numbers of a thread, and their partners.
  struct Values {
    float first[8], second[8];
  };
  // What is under way of a row.
  struct Row {
    uint4 first = {}, second = {}, squares[4] = {};
  };

  __device__ __forceinline__ static int row() { return threadIdx.x / 8; }
  __device__ __forceinline__ static int column() { return threadIdx.x % 8 * 8; }

  // Of one head, or of one row's angles.
  __device__ __forceinline__ static void load(const float* p, Values& v) {
    load8(p + column(), v.first);
    load8(p + column() + kDim / 2, v.second);
  }
  __device__ __forceinline__ static void add(Values& v, float above) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v.first[i] += above, v.second[i] += above;
  }

  // Where this thread's numbers of a row begin that begins at p: so that nothing is left to be found out once
  // they may be read.
  __device__ __forceinline__ static const bf16* numbers_at(const bf16* p) { return p + column(); }
  __device__ __forceinline__ static const float* squares_at(const float* p) {
    return p + threadIdx.x % 8 * 4;
  }
  // From there, if at all; and the sums of squares of `runs` runs.
  __device__ __forceinline__ static void load(const bf16* p, bool keep, Row& row) {
    load_fresh(row.first, p, keep);
    load_fresh(row.second, p + kDim / 2, keep);
  }
  __device__ __forceinline__ static void load_squares(const float* p, int runs, bool keep, Row& row) {
    const int own = runs - static_cast<int>(threadIdx.x) % 8 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_fresh(row.squares[i], reinterpret_cast<const bf16*>(p + i * 32), keep && i * 32 < own);
    }
  }

  // The same without norm.
  __device__ __forceinline__ static void store(bf16* target, const Row& row) {
    *reinterpret_cast<uint4*>(target + column()) = row.first;
    *reinterpret_cast<uint4*>(target + column() + kDim / 2) = row.second;
  }

  // By all threads: the row's numbers times gain / root of the mean square, a `share` of the sum.
  __device__ __forceinline__ static void normalise(const Row& row, const Values& gain, float share,
                                                   float eps, Values& v) {
    const float zero = __uint_as_float(late_zero());  // lest a sum is waited for before all loads are under way
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 s = row.squares[i];
      sum += (zero + __uint_as_float(s.x) + __uint_as_float(s.y)) +
             (zero + __uint_as_float(s.z) + __uint_as_float(s.w));
    }
    unpack8(row.first, v.first);
    unpack8(row.second, v.second);
    multiply(v, gain, rsqrtf(fmaf(over_row(sum), share, eps)));
  }
  // The same of the head alone.
  __device__ __forceinline__ static void normalise_head(const Row& row, const Values& gain, float eps,
                                                        Values& v) {
    unpack8(row.first, v.first);
    unpack8(row.second, v.second);
    float sum[2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      sum[0] = fmaf(v.first[i], v.first[i], sum[0]);
      sum[1] = fmaf(v.second[i], v.second[i], sum[1]);
    }
    multiply(v, gain, rsqrtf(fmaf(over_row(sum[0] + sum[1]), 1.0f / kDim, eps)));
  }

  // Turned by the angles of their row: cosines, and sines.
  __device__ __forceinline__ static void turn(Values& v, const Values& angles) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float a = v.first[i], b = v.second[i], cosine = angles.first[i], sine = angles.second[i];
      v.first[i] = a * cosine - b * sine;
      v.second[i] = b * cosine + a * sine;
    }
  }

  // Rounded, to where this row begins.
  __device__ __forceinline__ static void store(bf16* target, const Values& v) {
    store8(target + column(), v.first);
    store8(target + column() + kDim / 2, v.second);
  }

 private:
  __device__ __forceinline__ static float over_row(float sum) {
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    return sum;
  }
  __device__ __forceinline__ static void multiply(Values& v, const Values& gain, float scale) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v.first[i] *= scale * gain.first[i];
      v.second[i] *= scale * gain.second[i];
    }
  }
};

}  // namespace heads
}  // namespace flashrt
