// Who runs, and what is said when nobody can.
#include "engine.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <map>

#include <sys/mman.h>

#include "switch.hpp"

namespace emulator {

thread_local Fiber* current = nullptr;
thread_local const Launch* launched = nullptr;
thread_local Machine* machine = nullptr;

unsigned char* reserve(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "emulator: no memory\n");
    std::abort();
  }
  return static_cast<unsigned char*>(p);
}

std::string text(const char* format, ...) {
  char buffer[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  return buffer;
}

namespace {

void run_fiber() {
  current->block->started = true;
  launched->kernel(launched->args);
  machine->leave();
}

Dim3 place(unsigned linear, const Dim3& size) {
  return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y};
}

uint32_t page_end(uint32_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

void Machine::provide(unsigned fibers, unsigned blocks, uint32_t shared_bytes) {
  while (fibers_.size() < fibers) {
    fibers_.emplace_back();
    Fiber& fiber = fibers_.back();
    fiber.stack = reserve(kStackBytes, PROT_READ | PROT_WRITE);
    mprotect(fiber.stack, kPage, PROT_NONE);
  }
  // The window between two pages that nobody may touch; so are those behind the dynamic memory.
  while (memories_.size() < blocks) {
    unsigned char* memory = reserve(kWindow + 2 * kPage, PROT_NONE) + kPage;
    mprotect(memory + kStatic, kWindow - kStatic, PROT_READ | PROT_WRITE);
    mprotect(memory, page_end(kDynamic + guarded_), PROT_READ | PROT_WRITE);
    memories_.push_back(memory);
  }
  if (page_end(kDynamic + shared_bytes) != page_end(kDynamic + guarded_)) {
    for (unsigned char* memory : memories_) {
      mprotect(memory, kStatic, PROT_NONE);
      mprotect(memory, page_end(kDynamic + shared_bytes), PROT_READ | PROT_WRITE);
    }
  }
  guarded_ = shared_bytes;
}

void Machine::prepare(const Launch& launch, unsigned cluster) {
  const unsigned blocks = count(launch.cluster), threads = count(launch.block);
  provide(blocks * threads, blocks, launch.shared_bytes);
  used_ = 0;
  transfers_.clear();
  failed_ = arriving_ = false;
  message.clear();
  backwards_ = launch.order == 1 || launch.order == 3;
  at_once_ = launch.at_once();
  by_chance_ = launch.order > 3;
  chance_.seed(launch.order + cluster);
  const Dim3 clusters = {launch.grid.x / launch.cluster.x, launch.grid.y / launch.cluster.y,
                         launch.grid.z / launch.cluster.z};
  const Dim3 first = place(cluster, clusters);
  cluster_ = Cluster();
  cluster_.size = launch.cluster;
  cluster_.alive = blocks * threads;
  cluster_.blocks = std::vector<Block>(blocks);
  for (unsigned rank = 0; rank < blocks; ++rank) {
    Block& block = cluster_.blocks[rank];
    const Dim3 in = place(rank, launch.cluster);
    block.cluster = &cluster_;
    block.index = {first.x * launch.cluster.x + in.x, first.y * launch.cluster.y + in.y,
                   first.z * launch.cluster.z + in.z};
    block.rank = rank;
    block.memory = memories_[rank];
    prepare_block(launch, block);
  }
  order_warps();
}

void Machine::order_warps() {
  warps_.clear();
  for (Block& block : cluster_.blocks) {
    for (Warp& warp : block.warps) warps_.push_back(&warp);
  }
  if (backwards_) std::reverse(warps_.begin(), warps_.end());
  if (by_chance_) std::shuffle(warps_.begin(), warps_.end(), chance_);
  turns_.assign((warps_.size() + 63) / 64, 0);
  for (unsigned i = 0; i < warps_.size(); ++i) {
    warps_[i]->turn = i;
    turns_[i / 64] |= uint64_t{1} << i % 64;
    warps_[i]->ready = warps_[i]->existing;
  }
}

void Machine::prepare_block(const Launch& launch, Block& block) {
  block.threads = block.alive = count(launch.block);
  block.dynamic_bytes = launch.shared_bytes;
  std::memset(block.memory, kPoison, page_end(kDynamic + launch.shared_bytes));
  block.warps = std::vector<Warp>((block.threads + 31) / 32);
  block.groups = std::vector<Warpgroup>((block.threads + 127) / 128);
  for (unsigned i = 0; i < block.threads; ++i) {
    Fiber& fiber = fibers_[used_++];
    unsigned char* stack = fiber.stack;
    fiber = Fiber();
    fiber.stack = stack;
    fiber.stack_pointer = fresh_stack(stack + kStackBytes, run_fiber);
    fiber.block = &block;
    fiber.index = place(i, launch.block);
    fiber.linear = i;
    fiber.lane = i % 32;
    Warp& warp = block.warps[i / 32];
    fiber.warp = &warp;
    warp.index = i / 32;
    warp.group = &block.groups[i / 128];
    warp.lanes[fiber.lane] = &fiber;
    warp.existing |= 1u << fiber.lane;
  }
}

void Machine::run(const Launch& launch, unsigned cluster) {
  machine = this;
  launched = &launch;
  prepare(launch, cluster);
  try {
    while (Fiber* fiber = next()) {
      current = fiber;
      emulator_switch(&root_, fiber->stack_pointer);
      current = nullptr;
      if (failed_) break;
    }
    if (!failed_ && cluster_.alive) {
      failed_ = true;
      message = deadlock();
    }
    if (!failed_) check_edges();
  } catch (Failure) {
  }
  current = nullptr;
  machine = nullptr;
  launched = nullptr;
}

// A warp runs until it has to wait, so that what it must not do before others shows.
Warp* Machine::next_warp() {
  if (by_chance_ && chance_() % 16 == 0) {
    Warp* warp = warps_[chance_() % warps_.size()];
    if (warp->ready) return warp;
  }
  for (size_t i = 0; i < turns_.size(); ++i) {
    if (turns_[i]) return warps_[i * 64 + __builtin_ctzll(turns_[i])];
  }
  return nullptr;
}

void Machine::start(const Transfer& transfer) {
  transfers_.push_back(transfer);
  if (at_once_ || (by_chance_ && chance_() % 4 == 0)) arrive();
}

void Machine::arrive() {
  if (by_chance_) std::swap(transfers_.front(), transfers_[chance_() % transfers_.size()]);
  const Transfer transfer = transfers_.front();
  transfers_.pop_front();
  arriving_ = true;
  finish(transfer);
  arriving_ = false;
}

// Who runs next; where nobody can, what is under way arrives first.
Fiber* Machine::next() {
  Warp* warp = next_warp();
  while (!warp) {
    if (transfers_.empty()) return nullptr;
    arrive();
    warp = next_warp();
  }
  const bool backwards = by_chance_ ? chance_() % 2 : backwards_;
  const unsigned lane = backwards ? 31 - __builtin_clz(warp->ready) : __builtin_ctz(warp->ready);
  warp->ready &= ~(1u << lane);
  if (!warp->ready) turns_[warp->turn / 64] &= ~(uint64_t{1} << warp->turn % 64);
  return warp->lanes[lane];
}

void Machine::suspend() {
  Fiber* self = current;
  Fiber* fiber = next();
  if (fiber == self) return;
  if (!fiber) {
    emulator_switch(&self->stack_pointer, root_);
  } else {
    current = fiber;
    emulator_switch(&self->stack_pointer, fiber->stack_pointer);
  }
}

void Machine::leave() {
  Fiber& self = *current;
  Block& block = *self.block;
  self.done = true;
  self.warp->left |= 1u << self.lane;
  --block.alive;
  --cluster_.alive;
  // Who has left keeps nobody waiting.
  NamedBarrier& all = block.named[0];
  if (!all.waiting.empty() && all.waiting.size() == block.alive) {
    for (Fiber* fiber : all.waiting) wake(fiber);
    all.waiting.clear();
  }
  if (cluster_.alive && cluster_.arrived == cluster_.alive) {
    cluster_.arrived = 0;
    ++cluster_.phase;
    for (Fiber* fiber : cluster_.waiting) wake(fiber);
    cluster_.waiting.clear();
  }
  suspend();
  std::abort();  // nobody wakes it
}

void Machine::fail(const std::string& what) {
  if (!failed_) message = where() + what;
  failed_ = true;
  if (!current) throw Failure();
  void* lost;
  emulator_switch(&lost, root_);
  std::abort();
}

std::string Machine::where() const {
  if (!current || arriving_) return "";
  const Dim3 &b = current->block->index, &t = current->index;
  return text("block (%u, %u, %u), thread (%u, %u, %u): ", b.x, b.y, b.z, t.x, t.y, t.z);
}

void fail(const char* format, ...) {
  char buffer[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  machine->fail(buffer);
}

void wait(const char* what, uint32_t at, uint32_t parity) {
  current->waits = what;
  current->waits_at = at;
  current->waits_parity = parity;
  machine->suspend();
  current->waits = nullptr;
  current->waits_at = 0;
}

void wake(Fiber* fiber) { machine->ready(fiber); }

}  // namespace emulator
