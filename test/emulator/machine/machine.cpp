// See machine.hpp.
#include "machine.hpp"

#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

#include "switch.hpp"

namespace emulator {

thread_local Fiber* current = nullptr;
thread_local const Launch* launched = nullptr;

namespace {

constexpr size_t kStackBytes = 128 * 1024, kPage = 4096;

struct Failure {};

// A copy that is under way.
struct Transfer {
  enum Kind { kPush, kRun, kTile } kind;
  Block* block;
  Block* counted_by;
  uint32_t target, barrier, bytes;
  const void* source;
  unsigned char value[16];
  TileMap map;
  int at[kMostDimensions];
};

unsigned char* reserve(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "emulator: no memory\n");
    std::abort();
  }
  return static_cast<unsigned char*>(p);
}

// One OS thread's fibers and memory, kept from launch to launch.
class Machine {
 public:
  void run(const Launch& launch, unsigned cluster);
  [[noreturn]] void fail(const std::string& message);
  void suspend();
  void ready(Fiber* fiber) {
    fiber->warp->ready |= 1u << fiber->lane;
    turns_[fiber->warp->turn / 64] |= uint64_t{1} << fiber->warp->turn % 64;
  }
  void start(const Transfer& transfer);
  [[noreturn]] void leave();
  Cluster& cluster() { return cluster_; }
  std::string describe_fault(const void* address) const;

  std::string message;

 private:
  void prepare(const Launch& launch, unsigned cluster);
  void prepare_block(const Launch& launch, Block& block);
  void provide(unsigned fibers, unsigned blocks, uint32_t shared_bytes);
  void order_warps();
  Fiber* next();
  Warp* next_warp();
  void arrive();
  void finish(const Transfer& transfer);
  void check_edges();
  std::string deadlock() const;
  std::string where() const;

  Cluster cluster_;
  std::deque<Fiber> fibers_;
  unsigned used_ = 0;
  std::vector<unsigned char*> memories_;
  uint32_t guarded_ = 0;  // dynamic bytes in front of the pages that nobody may touch
  std::vector<Warp*> warps_;      // by their turns
  std::vector<uint64_t> turns_;   // a bit a warp: whether it has a lane that can run
  std::deque<Transfer> transfers_;
  void* root_ = nullptr;
  bool failed_ = false, arriving_ = false;
  bool backwards_ = false, at_once_ = false, by_chance_ = false;
  std::minstd_rand chance_;
};

thread_local Machine* machine = nullptr;

void run_fiber() {
  current->block->started = true;
  launched->kernel(launched->args);
  machine->leave();
}

unsigned count(const Dim3& size) { return size.x * size.y * size.z; }

Dim3 place(unsigned linear, const Dim3& size) {
  return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y};
}

uint32_t page_end(uint32_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string text(const char* format, ...) {
  char buffer[512];
  va_list list;
  va_start(list, format);
  std::vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  return buffer;
}

// ---- one cluster

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

// ---- copies under way

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

// ---- what the processor catches

struct sigaction segv_before, bus_before;

void caught(int number, siginfo_t* info, void* context) {
  if (machine && current) machine->fail(machine->describe_fault(info->si_addr));
  const struct sigaction& before = number == SIGSEGV ? segv_before : bus_before;
  if (before.sa_flags & SA_SIGINFO) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  signal(number, SIG_DFL);
}

void catch_faults() {
  struct sigaction action = {};
  action.sa_sigaction = caught;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &segv_before);
  sigaction(SIGBUS, &action, &bus_before);
}

void restore_faults() {
  sigaction(SIGSEGV, &segv_before, nullptr);
  sigaction(SIGBUS, &bus_before, nullptr);
}

// A full stack is told on another one.
class FaultStack {
 public:
  FaultStack() : memory_(reserve(kBytes, PROT_READ | PROT_WRITE)) {
    stack_t own = {};
    own.ss_sp = memory_;
    own.ss_size = kBytes;
    sigaltstack(&own, &before_);
  }
  ~FaultStack() {
    sigaltstack(&before_, nullptr);
    munmap(memory_, kBytes);
  }

 private:
  static constexpr size_t kBytes = 64 * 1024;
  unsigned char* memory_;
  stack_t before_;
};

std::vector<std::unique_ptr<Machine>> machines;

}  // namespace

// ---- what kernels use

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
    if (block.static_bytes > kWindow - kStatic) fail("more than %u bytes of static shared memory", kWindow - kStatic);
    std::memset(block.memory + kStatic + at->second, kPoison, bytes);
  }
  return block.memory + kStatic + at->second;
}

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
  if (bytes % 16 || reinterpret_cast<uint64_t>(source) % 16) fail("a bulk copy of %u bytes from %p", bytes, source);
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
  if (map.rank != static_cast<uint32_t>(dimensions)) fail("a tile of %d dimensions of a map of %u", dimensions, map.rank);
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

// 0 when every block has come to its end; else `message` says what happened first.
extern "C" __attribute__((visibility("default"))) int emulator_launch(void (*kernel)(void**), void** args, const unsigned* sizes,
                               unsigned shared_bytes, unsigned workers, unsigned order, char* message,
                               size_t length) {
  using namespace emulator;
  Launch launch = {kernel, args, {sizes[0], sizes[1], sizes[2]}, {sizes[3], sizes[4], sizes[5]},
                   {sizes[6], sizes[7], sizes[8]}, shared_bytes, order};
  const unsigned clusters = count(launch.grid) / count(launch.cluster);
  workers = std::min(workers, clusters);
  while (machines.size() < workers) machines.push_back(std::make_unique<Machine>());
  std::atomic<unsigned> taken = 0;
  std::atomic<bool> failed = false;
  std::string told;
  std::atomic_flag telling = ATOMIC_FLAG_INIT;
  const auto work = [&](Machine& own) {
    const FaultStack stack;
    for (unsigned i = taken++; i < clusters && !failed; i = taken++) {
      own.run(launch, i);
      if (!own.message.empty()) {
        failed = true;
        if (!telling.test_and_set()) told = own.message;
      }
    }
  };
  catch_faults();
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < workers; ++i) threads.emplace_back(work, std::ref(*machines[i]));
  work(*machines[0]);
  for (std::thread& thread : threads) thread.join();
  restore_faults();
  if (!failed) return 0;
  std::snprintf(message, length, "%s", told.c_str());
  return 1;
}
