// Sums over a warp and over a block.
#pragma once

namespace flashrt {

constexpr unsigned kAllLanes = 0xffffffffu;

// Sum over kLanes neighbours, a power of two, the same bits in each of them.
template <int kLanes>
__device__ __forceinline__ float lane_sum(float value) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// Sum over the 32 lanes, the same bits in every lane.
__device__ __forceinline__ float warp_sum(float value) { return lane_sum<32>(value); }

// Sum over a block of at most 1,024 threads (whole warps), the same bits in every thread.
// `slots` is shared memory for 32 floats that no thread still reads.
__device__ __forceinline__ float block_sum(float value, float* slots) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  if (warps == 1) return value;
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? slots[lane] : 0.0f);
}

struct Moments {
  float mean, factor;  // factor: 1 / sqrt(var + eps)
};

// Of a row of `width` numbers of which each thread of the block holds eight, zeros where it is not `inside`:
// the mean first, then the squares of the differences.
__device__ __forceinline__ Moments row_moments(const float (&v)[8], bool inside, int width, float eps,
                                               float (*slots)[32]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += v[i];
  const float mean = block_sum(sum, slots[0]) / width;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float difference = inside ? v[i] - mean : 0.0f;
    squares += difference * difference;
  }
  return {mean, rsqrtf(block_sum(squares, slots[1]) / width + eps)};
}

}  // namespace flashrt
