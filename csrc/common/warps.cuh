// Warps of a block that meet without the others, and registers that they hand to each other.
#pragma once

#include <cstdint>

namespace flashrt {

// Waits for the other warps that use barrier kBarrier of the block, kThreads in all.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void sync_warps() {
  asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// The same for a barrier whose number is known at run time.
template <int kThreads>
__device__ __forceinline__ void sync_warps(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kThreads) : "memory");
}

#if __CUDA_ARCH__ >= 900

// How many registers each thread of a warpgroup has from here on, fewer or more than before.
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

#endif

}  // namespace flashrt
