// What is said of a cluster that could not go on, or went where it may not.
#include <map>

#include "engine.hpp"

namespace emulator {

namespace {

uint32_t page_end(uint32_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

// Every group of threads that wait for the same thing, with the first of them.
std::string Machine::deadlock() const {
  std::map<std::string, std::pair<unsigned, unsigned>> groups;
  for (const Block& block : cluster_.blocks) {
    for (const Warp& warp : block.warps) {
      for (const Fiber* fiber : warp.lanes) {
        if (!fiber || fiber->done) continue;
        std::string what = text("block (%u, %u, %u): ", block.index.x, block.index.y, block.index.z);
        what += fiber->waits ? fiber->waits : "nothing";
        const auto found = block.barriers.find(fiber->waits_at);
        if (fiber->waits_at && found != block.barriers.end()) {
          const Barrier& barrier = found->second;
          what += text(" at %u, parity %u (%u of %u arrivals and %lld bytes missing)", fiber->waits_at,
                       fiber->waits_parity, barrier.pending, barrier.expected,
                       static_cast<long long>(barrier.bytes));
        } else if (fiber->waits_at) {
          what += text(" %u", fiber->waits_at);
        }
        auto [at, fresh] = groups.try_emplace(what, 0, fiber->linear);
        ++at->second.first;
      }
    }
  }
  std::string all = "deadlock";
  unsigned told = 0;
  for (const auto& [what, who] : groups) {
    if (++told > 12) {
      all += "; ...";
      break;
    }
    all += text("; %u threads (first %u) of %s", who.first, who.second, what.c_str());
  }
  return all;
}

// Bytes next to the dynamic memory that are on its pages but not of it.
void Machine::check_edges() {
  for (const Block& block : cluster_.blocks) {
    const uint32_t end = kDynamic + block.dynamic_bytes;
    for (uint32_t at = 0; at < page_end(end); ++at) {
      if (at == kDynamic) at = end;
      if (at < page_end(end) && block.memory[at] != kPoison) {
        message = text("block (%u, %u, %u): byte %d of %u bytes of dynamic shared memory was written",
                       block.index.x, block.index.y, block.index.z, static_cast<int>(at) - int(kDynamic),
                       block.dynamic_bytes);
        failed_ = true;
        return;
      }
    }
  }
}

std::string Machine::describe_fault(const void* address) const {
  const auto* p = static_cast<const unsigned char*>(address);
  for (const Block& block : cluster_.blocks) {
    if (p >= block.memory - kPage && p < block.memory + kWindow + kPage) {
      return text("access to byte %ld of %u bytes of dynamic shared memory",
                  static_cast<long>(p - block.memory) - kDynamic, block.dynamic_bytes);
    }
  }
  if (current && p >= current->stack && p < current->stack + kPage) return "the thread's stack is full";
  return text("access to address %p, where no memory is", address);
}

}  // namespace emulator
