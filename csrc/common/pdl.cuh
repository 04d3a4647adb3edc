// Programmatic dependent launch: a kernel may start while the one before it still runs.
//
// pdl_trigger(): the next kernel of the stream may start now. Called first thing, so that the next
// grid gets its blocks, parameters and weights ready under this kernel's tail; or, where that was measured
// to be faster, once x has come, which the next kernel's weights would delay.
// pdl_wait(): returns when every kernel before this one is complete and its stores are visible. Every
// kernel calls it before it touches anything an earlier kernel wrote or reads; only static weights
// may be read before it. Without the launch attribute both do nothing.
#pragma once

namespace flashrt {

__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace flashrt
