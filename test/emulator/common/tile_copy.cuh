// As csrc/common/tile_copy.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mma.cuh"

namespace flashrt {

inline void barrier_init(uint32_t barrier, uint32_t arrivals) { emulator::barrier_init(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_expect(uint32_t barrier, uint32_t bytes) { emulator::barrier_arrive(barrier, bytes); }
inline void barrier_arrive(uint32_t barrier) { emulator::barrier_arrive(barrier); }
inline void barrier_wait(uint32_t barrier, uint32_t parity) { emulator::barrier_wait(barrier, parity); }
inline void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  emulator::barrier_arrive(emulator::remote_address(barrier, rank));
}

inline void copy_tile_to(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int column, int row,
                         uint16_t blocks) {
  const int at[2] = {column, row};
  emulator::copy_tile(map.tiles, shared, barrier, at, 2, blocks);
}
inline void copy_tile(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int column, int row) {
  copy_tile_to(map, shared, barrier, column, row, 0);
}
inline void copy_tile_4d(const CUtensorMap& map, uint32_t shared, uint32_t barrier, int column, int outer) {
  const int at[4] = {column, 0, 0, outer};
  emulator::copy_tile(map.tiles, shared, barrier, at, 4, 0);
}
inline void prefetch_map(const CUtensorMap&) {}
inline void prefetch_tile(const CUtensorMap&, int, int) {}
inline void prefetch_run(const void*, uint32_t) {}

}  // namespace flashrt
