// As csrc/common/warps.cuh.
#pragma once

#include <cstdint>

namespace flashrt {

template <int kBarrier, int kThreads>
inline void sync_warps() {
  emulator::sync_named(kBarrier, kThreads);
}
template <int kThreads>
inline void sync_warps(int barrier) {
  emulator::sync_named(barrier, kThreads);
}

template <int kRegisters>
inline void give_registers() {
  static_assert(kRegisters % 8 == 0 && kRegisters >= 24 && kRegisters <= 256, "as setmaxnreg takes it");
}
template <int kRegisters>
inline void take_registers() {
  give_registers<kRegisters>();
}

}  // namespace flashrt
