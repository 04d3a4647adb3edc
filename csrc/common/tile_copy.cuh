// Barriers in shared memory and bulk copies of tiles by the copy engine (sm_90 and later).
//
// A barrier completes a phase when its arrivals and all bytes expected of it have come. Waiting names
// the parity of the phase: 0 for the first, then alternating. Waits and arrivals keep the default scope
// (the block): they pass tiles between the copy engine and the tensor cores, which read and write past
// the first-level cache. With the scope of the cluster every wait would empty that cache, and every
// arrival would first wait for all stores of its thread to reach the second level.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "mma.cuh"

namespace flashrt {

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the cluster.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// Arrives at the barrier of the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

// Copies the tile at (column, row) into shared memory and counts its bytes on `barrier`.
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, uint32_t shared, uint32_t barrier,
                                          int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4}], [%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// Asks for the tile at (column, row) in the second-level cache.
__device__ __forceinline__ void prefetch_tile(const CUtensorMap& map, int column, int row) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&map), "r"(column),
               "r"(row)
               : "memory");
}

// Asks for a run of bytes (a multiple of 16) in the second-level cache.
__device__ __forceinline__ void prefetch_run(const void* global, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(global), "r"(bytes) : "memory");
}

// A box of a map of four dimensions, whole in the second and third, into shared memory.
__device__ __forceinline__ void copy_tile_4d(const CUtensorMap& map, uint32_t shared,
                                             uint32_t barrier, int column, int outer) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %4, %5}], [%2];" ::"r"(shared),
      "l"(&map), "r"(barrier), "r"(column), "r"(0), "r"(outer)
      : "memory");
}

// copy_tile into every block of the cluster whose bit is set in `blocks`, at the same addresses.
__device__ __forceinline__ void copy_tile_to(const CUtensorMap& map, uint32_t shared,
                                             uint32_t barrier, int column, int row,
                                             uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(shared),
      "l"(&map), "r"(barrier), "h"(blocks), "r"(column), "r"(row)
      : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

#endif

}  // namespace flashrt
