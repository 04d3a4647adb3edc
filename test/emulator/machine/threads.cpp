// Where threads meet: lanes of a warp, threads of a block, blocks of a cluster.
#include <cstring>

#include "engine.hpp"

namespace emulator {

bool meet(unsigned mask, const char* what, void* deposit) {
  Fiber& self = *current;
  Warp& warp = *self.warp;
  mask &= warp.existing;
  if (!(mask >> self.lane & 1)) fail("%s: lane %u is not in the mask %08x", what, self.lane, mask);
  if (mask & warp.left) fail("%s: lanes %08x have left", what, mask & warp.left);
  Warp::Meeting& meeting = warp.meetings[__builtin_ctz(mask)];
  if (!meeting.arrived) {
    meeting.mask = mask;
    meeting.what = what;
  } else if (meeting.mask != mask || std::strcmp(meeting.what, what) != 0) {
    fail("%s of lanes %08x, while others of the warp are at %s of lanes %08x", what, mask, meeting.what,
         meeting.mask);
  }
  meeting.arrived |= 1u << self.lane;
  self.deposit = deposit;
  if (meeting.arrived == mask) {
    meeting.arrived = 0;
    return true;
  }
  wait(what);
  return false;
}

void part(unsigned mask) {
  Fiber& self = *current;
  for (Fiber* fiber : self.warp->lanes) {
    if (fiber && fiber != &self && mask >> fiber->lane & 1) wake(fiber);
  }
}

static void meet_block(int index, unsigned threads, bool all, const char* what) {
  Block& block = *current->block;
  NamedBarrier& barrier = block.named[index];
  if (!barrier.waiting.empty() && !all && barrier.threads != threads) {
    fail("%s %d of %u threads, where others wait for %u", what, index, threads, barrier.threads);
  }
  barrier.threads = threads;
  if (barrier.waiting.size() + 1 < threads) {
    barrier.waiting.push_back(current);
    wait(what, index);
    return;
  }
  for (Fiber* fiber : barrier.waiting) wake(fiber);
  barrier.waiting.clear();
}

void sync_threads() { meet_block(0, current->block->alive, true, "__syncthreads"); }

void sync_named(int barrier, unsigned threads) {
  if (barrier < 0 || barrier > 15) fail("barrier %d of a block, which has 16", barrier);
  meet_block(barrier, threads, false, "named barrier");
}

void cluster_arrive() {
  Fiber& self = *current;
  Cluster& cluster = *self.block->cluster;
  if (self.cluster_arrived) fail("a second arrival at the cluster's barrier without a wait");
  self.cluster_arrived = true;
  self.cluster_phase = cluster.phase;
  if (++cluster.arrived < cluster.alive) return;
  cluster.arrived = 0;
  ++cluster.phase;
  for (Fiber* fiber : cluster.waiting) wake(fiber);
  cluster.waiting.clear();
}

void cluster_wait() {
  Fiber& self = *current;
  Cluster& cluster = *self.block->cluster;
  if (!self.cluster_arrived) fail("a wait at the cluster's barrier without an arrival");
  self.cluster_arrived = false;
  if (cluster.phase != self.cluster_phase) return;
  cluster.waiting.push_back(&self);
  wait("the cluster's barrier");
}

}  // namespace emulator
