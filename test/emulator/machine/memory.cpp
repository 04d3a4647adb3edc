// Shared memory, barriers in it, and copies into it.
#include <cstring>

#include "engine.hpp"

namespace emulator {

namespace {

Block& block_of(uint32_t address) {
  const unsigned rank = address >> 24;
  return rank ? machine->cluster().blocks[rank - 1] : *current->block;
}

unsigned char* memory_of(Block& block, uint32_t address, uint32_t bytes, const char* what) {
  const uint32_t at = address & 0xffffff;
  const bool dynamic = at >= kDynamic && at + bytes <= kDynamic + block.dynamic_bytes;
  const bool fixed = at >= kStatic && at + bytes <= kStatic + block.static_bytes;
  if (!dynamic && !fixed) {
    fail("%s: %u bytes at %d of %u bytes of dynamic shared memory", what, bytes,
         static_cast<int>(at) - static_cast<int>(kDynamic), block.dynamic_bytes);
  }
  return block.memory + at;
}

void check_alive(const Block& block, const char* what) {
  if (!block.started || !block.alive) {
    fail("%s: block (%u, %u, %u) %s", what, block.index.x, block.index.y, block.index.z,
         block.started ? "has left" : "has not begun");
  }
}

Barrier& barrier_at(Block& block, uint32_t address) {
  const auto found = block.barriers.find(address & 0xffffff);
  if (found == block.barriers.end()) {
    fail("barrier %u of block (%u, %u, %u) is used before it is initialised", address & 0xffffff,
         block.index.x, block.index.y, block.index.z);
  }
  return found->second;
}

void settle(Barrier& barrier) {
  if (barrier.pending || barrier.bytes) return;
  const uint32_t parity = barrier.phase & 1;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  std::vector<Fiber*> others;
  for (Fiber* fiber : barrier.waiting) {
    if (fiber->waits_parity == parity) {
      wake(fiber);
    } else {
      others.push_back(fiber);
    }
  }
  barrier.waiting.swap(others);
}

void arrive(Barrier& barrier, uint32_t bytes) {
  if (!barrier.pending) fail("more arrivals at a barrier than the %u it has", barrier.expected);
  barrier.bytes += bytes;
  --barrier.pending;
  settle(barrier);
}

uint32_t turned(uint32_t at, uint32_t swizzle) {
  return swizzle ? at ^ ((at >> 7 & (swizzle / 16 - 1)) << 4) : at;
}

uint64_t box_bytes(const TileMap& map) {
  uint64_t bytes = map.element_bytes;
  for (uint32_t i = 0; i < map.rank; ++i) bytes *= map.box[i];
  return bytes;
}

// Row by row of the box; what lies outside of the matrix is zero.
void copy_box(const TileMap& map, const int* first, Block& block, uint32_t target) {
  const uint32_t width = map.box[0] * map.element_bytes;
  uint64_t rows = 1;
  for (uint32_t i = 1; i < map.rank; ++i) rows *= map.box[i];
  for (uint64_t row = 0; row < rows; ++row) {
    uint64_t left = row, offset = 0;
    bool inside = true;
    for (uint32_t i = 1; i < map.rank; ++i) {
      const int64_t at = first[i] + static_cast<int64_t>(left % map.box[i]);
      left /= map.box[i];
      inside = inside && at >= 0 && at < map.size[i];
      offset += static_cast<uint64_t>(at) * map.stride[i - 1];
    }
    const auto* source = reinterpret_cast<const unsigned char*>(map.base) + offset;
    for (uint32_t unit = 0; unit < width; unit += 16) {
      unsigned char* to = block.memory + turned(target + row * width + unit, map.swizzle);
      for (uint32_t byte = 0; byte < 16; byte += map.element_bytes) {
        const int64_t column = first[0] + static_cast<int64_t>((unit + byte) / map.element_bytes);
        const bool there = inside && column >= 0 && column < map.size[0];
        if (there) {
          std::memcpy(to + byte, source + column * map.element_bytes, map.element_bytes);
        } else {
          std::memset(to + byte, 0, map.element_bytes);
        }
      }
    }
  }
}

}  // namespace

void Machine::finish(const Transfer& transfer) {
  Block& block = *transfer.block;
  check_alive(block, "a copy comes into shared memory");
  switch (transfer.kind) {
    case Transfer::kPush:
      std::memcpy(block.memory + transfer.target, transfer.value, transfer.bytes);
      break;
    case Transfer::kRun:
      std::memcpy(block.memory + transfer.target, transfer.source, transfer.bytes);
      break;
    case Transfer::kTile:
      copy_box(transfer.map, transfer.at, block, transfer.target);
      break;
  }
  Barrier& barrier = barrier_at(*transfer.counted_by, transfer.barrier);
  barrier.bytes -= transfer.bytes;
  settle(barrier);
}

unsigned char* shared_memory(uint32_t address, uint32_t bytes, const char* what, uint32_t alignment) {
  if (address % alignment) fail("%s: address %u is no multiple of %u", what, address, alignment);
  return memory_of(block_of(address), address, bytes, what);
}

uint32_t shared_address(const void* p) {
  const auto* at = static_cast<const unsigned char*>(p);
  const unsigned char* memory = current->block->memory;
  if (at < memory || at >= memory + kWindow) fail("the address of shared memory of what lies elsewhere");
  return static_cast<uint32_t>(at - memory);
}

uint32_t remote_address(uint32_t address, unsigned rank) {
  if (rank >= current->block->cluster->blocks.size()) {
    fail("block %u of a cluster of %zu", rank, current->block->cluster->blocks.size());
  }
  return (address & 0xffffff) | (rank + 1) << 24;
}

unsigned char* static_shared(const void* key, uint32_t bytes) {
  Block& block = *current->block;
  const auto [at, fresh] = block.statics.try_emplace(key, block.static_bytes);
  if (fresh) {
    block.static_bytes += (bytes + 127) / 128 * 128;
    if (block.static_bytes > kWindow - kStatic) {
      fail("more than %u bytes of static shared memory", kWindow - kStatic);
    }
    std::memset(block.memory + kStatic + at->second, kPoison, bytes);
  }
  return block.memory + kStatic + at->second;
}

void barrier_init(uint32_t address, uint32_t arrivals) {
  shared_memory(address, 8, "a barrier", 8);
  Barrier& barrier = current->block->barriers[address & 0xffffff];
  if (!barrier.waiting.empty()) fail("a barrier is initialised while others wait at it");
  barrier = {arrivals, arrivals, 0, 0, {}};
}

void barrier_arrive(uint32_t address, uint32_t bytes) {
  Block& block = block_of(address);
  check_alive(block, "an arrival at a barrier");
  arrive(barrier_at(block, address), bytes);
}

void barrier_wait(uint32_t address, uint32_t parity) {
  Barrier& barrier = barrier_at(*current->block, address);
  if ((barrier.phase & 1) != parity) return;
  barrier.waiting.push_back(current);
  wait("a barrier", address, parity);
}

void copy_async(uint32_t target, const void* source, uint32_t bytes, uint32_t zeros) {
  unsigned char* to = shared_memory(target, bytes + zeros, "cp.async", bytes + zeros);
  std::memset(to, kPoison, bytes + zeros);
  current->copies.push_back({to, source, bytes, zeros});
}

void copy_commit() { current->groups.push_back(current->copies.size()); }

void copy_wait(size_t pending) {
  Fiber& self = *current;
  if (self.groups.size() <= pending) return;
  const size_t groups = self.groups.size() - pending, end = self.groups[groups - 1];
  for (size_t i = 0; i < end; ++i) {
    const Copy& copy = self.copies[i];
    if (copy.bytes) std::memcpy(copy.target, copy.source, copy.bytes);
    std::memset(copy.target + copy.bytes, 0, copy.zeros);
  }
  self.copies.erase(self.copies.begin(), self.copies.begin() + end);
  self.groups.erase(self.groups.begin(), self.groups.begin() + groups);
  for (size_t& group : self.groups) group -= end;
}

void push(uint32_t target, uint32_t barrier, const void* value, uint32_t bytes) {
  Transfer transfer = {};
  transfer.kind = Transfer::kPush;
  transfer.block = &block_of(target);
  transfer.counted_by = &block_of(barrier);
  check_alive(*transfer.block, "a push into shared memory");
  std::memset(memory_of(*transfer.block, target, bytes, "a push"), kPoison, bytes);
  transfer.target = target & 0xffffff;
  transfer.barrier = barrier & 0xffffff;
  transfer.bytes = bytes;
  std::memcpy(transfer.value, value, bytes);
  machine->start(transfer);
}

void copy_run(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier) {
  if (bytes % 16 || reinterpret_cast<uint64_t>(source) % 16) {
    fail("a bulk copy of %u bytes from %p", bytes, source);
  }
  std::memset(shared_memory(target, bytes, "a bulk copy", 16), kPoison, bytes);
  Transfer transfer = {};
  transfer.kind = Transfer::kRun;
  transfer.block = transfer.counted_by = current->block;
  transfer.target = target;
  transfer.barrier = barrier;
  transfer.bytes = bytes;
  transfer.source = source;
  machine->start(transfer);
}

void copy_tile(const TileMap& map, uint32_t target, uint32_t barrier, const int* at, int dimensions,
               unsigned blocks) {
  if (map.rank != static_cast<uint32_t>(dimensions)) {
    fail("a tile of %d dimensions of a map of %u", dimensions, map.rank);
  }
  Cluster& cluster = *current->block->cluster;
  Transfer transfer = {};
  transfer.kind = Transfer::kTile;
  transfer.target = target & 0xffffff;
  transfer.barrier = barrier & 0xffffff;
  transfer.bytes = static_cast<uint32_t>(box_bytes(map));
  transfer.map = map;
  std::memcpy(transfer.at, at, sizeof(int) * dimensions);
  if (target % 128) fail("a tile at %u, which is no multiple of 128", target);
  for (unsigned rank = 0; rank < cluster.blocks.size(); ++rank) {
    Block& block = cluster.blocks[rank];
    if (blocks ? !(blocks >> rank & 1) : &block != current->block) continue;
    check_alive(block, "a tile");
    std::memset(memory_of(block, target, transfer.bytes, "a tile"), kPoison, transfer.bytes);
    transfer.block = transfer.counted_by = &block;
    machine->start(transfer);
  }
}

}  // namespace emulator
