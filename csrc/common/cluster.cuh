// Thread block clusters: pushing results into the shared memory of a neighbour (sm_90 and later).
//
// A push (st.async) carries its bytes and counts them on the receiver's mbarrier, so the receiver
// waits for data, not for its neighbours: cheaper than a cluster barrier. Order of use: every block
// sets its barriers up and arrives, then waits for the cluster once before its first push (a block
// must have started before its memory is written). A block leaves after it has received everything.
#pragma once

#include <cstdint>

#include "mma.cuh"

namespace flashrt {

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

// The same without order: the release above makes a block wait until all that its threads have under way in
// memory is done (MEMBAR.ALL.GPU). At the start of a kernel that is the way to memory that everything else
// waits for, and there is nothing to publish: a block has made its barriers, which barrier_init_fence() and
// expect_bytes() publish, and neighbours only push, to where nothing was written yet.
__device__ __forceinline__ void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Makes a barrier that completes once, when `bytes` have come by pushes or bulk copies; one thread
// calls it, before it arrives at the cluster barrier or at a barrier of the block.
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  const uint32_t at = shared_address(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait_bytes(uint64_t* barrier) {
  const uint32_t at = shared_address(barrier);
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(at)
        : "memory");
  }
}

// Bulk copy of a run of bytes (a multiple of 16) into shared memory, counted on `barrier`.
__device__ __forceinline__ void copy_run(void* shared, const void* global, uint32_t bytes,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// The address of `mine` in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t remote_address(const void* mine, uint32_t rank) {
  uint32_t remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(remote)
               : "r"(shared_address(mine)), "r"(rank));
  return remote;
}

// Makes this thread's stores to shared memory visible to bulk copies and warpgroup products; before a
// barrier.
__device__ __forceinline__ void publish_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Pushes unless `keep` is false.
__device__ __forceinline__ void push(uint32_t remote, uint32_t barrier, float4 v, bool keep = true) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %6, 0;\n"
      "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];\n}"
      ::"r"(remote), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier),
      "r"(static_cast<uint32_t>(keep))
      : "memory");
}

__device__ __forceinline__ void push(uint32_t remote, uint32_t barrier, float2 v, bool keep = true) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
      "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];\n}"
      ::"r"(remote), "f"(v.x), "f"(v.y), "r"(barrier), "r"(static_cast<uint32_t>(keep))
      : "memory");
}

__device__ __forceinline__ void push(uint32_t remote, uint32_t barrier, float v, bool keep = true) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
      "@p st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];\n}" ::"r"(remote),
      "f"(v), "r"(barrier), "r"(static_cast<uint32_t>(keep))
      : "memory");
}

}  // namespace flashrt
