// Kernels that do what may not be done, one thing each, and what the emulator says of it.
#include "common/cluster.cuh"
#include "common/mma.cuh"
#include "common/tile_copy.cuh"
#include "common/warps.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(64) trial_one_warp_is_late(float*) {
  if (threadIdx.x < 32) {
    sync_warps<64>(3);
  } else {
    sync_warps<64>(4);
  }
}

extern "C" __global__ void __launch_bounds__(32) trial_lanes_part(float*) {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  }
}

extern "C" __global__ void __launch_bounds__(32) trial_lanes_have_left(float*) {
  if (threadIdx.x == 5) return;
  __syncwarp(0xffffu << threadIdx.x % 1);
  __syncwarp();
}

extern "C" __global__ void __launch_bounds__(32) trial_beyond_shared(float*) {
  extern __shared__ float beyond[];
  beyond[threadIdx.x + 8000] = 1.0f;
}

extern "C" __global__ void __launch_bounds__(32) trial_next_to_shared(float*) {
  extern __shared__ float next[];
  next[threadIdx.x] = 1.0f;
}

extern "C" __global__ void __launch_bounds__(32) trial_copy_beyond_shared(float* out) {
  extern __shared__ float copied[];
  copy16_async(shared_address(copied) + 64, out, true);
}

extern "C" __global__ void __launch_bounds__(32) trial_barrier_of_nobody(float*) {
  __shared__ uint64_t nobody;
  barrier_wait(shared_address(&nobody), 0);
}

extern "C" __global__ void __launch_bounds__(32) trial_bytes_that_never_come(float*) {
  __shared__ uint64_t never;
  if (threadIdx.x == 0) expect_bytes(&never, 48);
  __syncwarp();
  wait_bytes(&never);
}

extern "C" __global__ void __launch_bounds__(32) trial_push_before_it_begins(float*) {
  __shared__ uint64_t begun;
  __shared__ float target;
  if (threadIdx.x == 0) expect_bytes(&begun, 4);
  push(remote_address(&target, 1), remote_address(&begun, 1), 1.0f, threadIdx.x == 0);
}

extern "C" __global__ void __launch_bounds__(32) trial_leave_before_it_comes(float*) {
  __shared__ uint64_t left;
  __shared__ float target;
  if (threadIdx.x == 0) expect_bytes(&left, 4);
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() == 0) push(remote_address(&target, 1), remote_address(&left, 1), 1.0f, threadIdx.x == 0);
}

// Memory that nobody has written is NaN, and so is the target of a copy until it is waited for.
extern "C" __global__ void __launch_bounds__(32) trial_poison(float* out, const float* in) {
  extern __shared__ float poisoned[];
  out[threadIdx.x] = poisoned[threadIdx.x];
  for (int i = threadIdx.x; i < 64; i += 32) poisoned[i] = 1.0f;
  __syncwarp();
  if (threadIdx.x < 8) copy16_async(shared_address(poisoned + 4 * threadIdx.x), in + 4 * threadIdx.x);
  copy_commit();
  __syncwarp();
  out[32 + threadIdx.x] = poisoned[threadIdx.x];
  __syncwarp();
  copy_wait<0>();
  __syncwarp();
  out[64 + threadIdx.x] = poisoned[threadIdx.x];
}
