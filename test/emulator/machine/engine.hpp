// One OS thread of the machine: fibers, shared memory, who runs next and what is under way.
#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <vector>

#include "machine.hpp"

namespace emulator {

constexpr size_t kStackBytes = 128 * 1024, kPage = 4096;

// Thrown where no fiber runs; a fiber that fails is left for good.
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

extern thread_local Machine* machine;

inline unsigned count(const Dim3& size) { return size.x * size.y * size.z; }
unsigned char* reserve(size_t bytes, int protection);
std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emulator
