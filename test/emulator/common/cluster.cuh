// As csrc/common/cluster.cuh.
#pragma once

#include <cstdint>

#include "mma.cuh"

namespace flashrt {

inline uint32_t cluster_rank() { return emulator::current->block->rank; }
inline void cluster_arrive() { emulator::cluster_arrive(); }
inline void cluster_arrive_relaxed() { emulator::cluster_arrive(); }
inline void cluster_wait() { emulator::cluster_wait(); }

inline void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  emulator::barrier_init(shared_address(barrier), 1);
  emulator::barrier_arrive(shared_address(barrier), bytes);
}
inline void wait_bytes(uint64_t* barrier) { emulator::barrier_wait(shared_address(barrier), 0); }

inline void copy_run(void* shared, const void* global, uint32_t bytes, uint64_t* barrier) {
  emulator::copy_run(shared_address(shared), global, bytes, shared_address(barrier));
}
inline uint32_t remote_address(const void* mine, uint32_t rank) {
  return emulator::remote_address(shared_address(mine), rank);
}
inline void publish_shared() {}

template <class T>
inline void push(uint32_t remote, uint32_t barrier, T v, bool keep = true) {
  if (keep) emulator::push(remote, barrier, &v, sizeof(T));
}

}  // namespace flashrt
