// Where a kernel's time goes: with -DFLASHRT_PROBE, and only then, thread 0 of each block leaves the clock
// of its multiprocessor at each event, for the last launch of a kind of kernel. Two more numbers are the
// multiprocessor and the time, so that kernels that shared one can be laid side by side.
#pragma once

#include <cstdint>

namespace flashrt {

constexpr int kProbeKinds = 16, kProbeBlocks = 264, kProbeEvents = 8;

#ifdef FLASHRT_PROBE
__device__ long long probed[kProbeKinds][kProbeBlocks][kProbeEvents + 2];

__device__ __forceinline__ void probe_event(int kind, int event) {
  if (threadIdx.x != 0) return;
  long long* row = probed[kind][blockIdx.x];
  row[event] = clock64();
  if (event == 0) {
    uint32_t place;
    uint64_t time;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(place));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    row[kProbeEvents] = place, row[kProbeEvents + 1] = static_cast<long long>(time);
  }
}
#else
__device__ __forceinline__ void probe_event(int, int) {}
#endif

}  // namespace flashrt
