// A GPU's threads on a CPU. Threads of CUDA are fibers; the blocks of a cluster share one of the
// machine's OS threads, and so does all that they wait for. So there is nothing to lock, a run repeats
// exactly, and when no fiber can run, all of them wait for what never comes: that is told, not waited for.
//
// What is asynchronous on a GPU is done as late as it may be: a copy when somebody waits for it or
// nobody can do anything else. Until then its target holds poison, the bytes 0xff, which are NaN in every
// format of floating point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#pragma GCC visibility push(default)
namespace emulator {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

constexpr unsigned char kPoison = 0xff;
// The window of shared memory: dynamic memory, then what is declared with a size.
constexpr uint32_t kDynamic = 1024, kStatic = 240 * 1024, kWindow = 256 * 1024;
constexpr int kMostDimensions = 5;

// What a launch's tensor map holds here; as device.py packs it.
struct TileMap {
  uint64_t base;
  uint32_t rank, element_bytes, swizzle, unused;
  uint32_t size[kMostDimensions], box[kMostDimensions];
  uint64_t stride[kMostDimensions - 1];  // bytes, of all dimensions but the first
};
static_assert(sizeof(TileMap) == 96, "as it is packed");

struct Block;
struct Cluster;
struct Warp;

// A copy that a thread has asked for with cp.async.
struct Copy {
  unsigned char* target;
  const void* source;
  uint32_t bytes, zeros;
};

struct Fiber {
  void* stack_pointer = nullptr;
  unsigned char* stack = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  Dim3 index;
  unsigned linear = 0, lane = 0;
  bool done = false;
  const char* waits = nullptr;  // for what, while it cannot run
  uint32_t waits_at = 0, waits_parity = 0;
  void* deposit = nullptr;  // of a collective
  unsigned cluster_phase = 0;
  bool cluster_arrived = false;
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // ends of committed ones in `copies`
};

// A warpgroup's product as one of its warps takes part in it.
struct Product {
  int columns, element_bytes;
  bool from_registers, along_columns, keep;
  uint64_t a_tile, b_tile;
  float* d[32];
  uint32_t a[32][4];
};

struct Warp {
  struct Meeting {
    unsigned mask = 0, arrived = 0;
    const char* what = nullptr;
  };
  Fiber* lanes[32] = {};
  unsigned existing = 0, left = 0, index = 0;
  Meeting meetings[32];  // by the first lane of their mask
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
};

struct Barrier {
  uint32_t expected = 0, pending = 0, phase = 0;
  int64_t bytes = 0;
  std::vector<Fiber*> waiting;
};

struct NamedBarrier {
  unsigned threads = 0;
  std::vector<Fiber*> waiting;
};

struct Block {
  Cluster* cluster = nullptr;
  Dim3 index;
  unsigned rank = 0, threads = 0, alive = 0;
  bool started = false;
  unsigned char* memory = nullptr;  // the window
  uint32_t dynamic_bytes = 0, static_bytes = 0;
  std::vector<Warp> warps;
  NamedBarrier named[16];
  std::unordered_map<uint32_t, Barrier> barriers;
  std::unordered_map<const void*, uint32_t> statics;
};

struct Cluster {
  std::vector<Block> blocks;
  Dim3 size;
  unsigned arrived = 0, phase = 0, alive = 0;
  std::vector<Fiber*> waiting;
};

struct Launch {
  void (*kernel)(void** args);
  void** args;
  Dim3 grid, block, cluster;
  uint32_t shared_bytes;
  unsigned seed;  // 0: threads take turns in their order, 1: backwards, others: by chance
};

// The thread that runs; null outside of a kernel.
extern thread_local Fiber* current __attribute__((tls_model("initial-exec")));
extern thread_local const Launch* launched __attribute__((tls_model("initial-exec")));

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Lets others run until somebody wakes this thread.
void wait(const char* what, uint32_t at = 0, uint32_t parity = 0);
void wake(Fiber* fiber);

// Memory of a block or, where the address says so, of another one of its cluster.
unsigned char* shared_memory(uint32_t address, uint32_t bytes, const char* what, uint32_t alignment = 1);
uint32_t shared_address(const void* p);
uint32_t remote_address(uint32_t address, unsigned rank);
unsigned char* static_shared(const void* key, uint32_t bytes);

// `apply` runs once for all lanes of `mask`, when the last one has come.
bool meet(unsigned mask, const char* what, void* deposit);
void part(unsigned mask);

template <class Apply>
void together(unsigned mask, const char* what, void* deposit, const Apply& apply) {
  if (!meet(mask, what, deposit)) return;
  apply(*current->warp);
  part(mask);
}

void sync_threads();
void sync_named(int barrier, unsigned threads);
void cluster_arrive();
void cluster_wait();

void barrier_init(uint32_t address, uint32_t arrivals);
void barrier_arrive(uint32_t address, uint32_t bytes = 0);
void barrier_wait(uint32_t address, uint32_t parity);

void copy_async(uint32_t target, const void* source, uint32_t bytes, uint32_t zeros);
void copy_commit();
void copy_wait(size_t pending);

// Under way until nobody can run; counted on a barrier. `bytes` at most 16 for a push.
void push(uint32_t target, uint32_t barrier, const void* value, uint32_t bytes);
void copy_run(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier);
void copy_tile(const TileMap& map, uint32_t target, uint32_t barrier, const int* at, int dimensions,
               unsigned blocks);  // bits of the cluster's; 0: into this one alone

// A warp's product of bf16: d [16, 8] += a [16, depth] b [depth, 8], as lanes hold them.
void mma(float* const* d, const uint32_t (*a)[4], const uint32_t (*b)[2], int depth);

// A warpgroup's, performed when it is waited for.
void product(const Product& product, float* d, const uint32_t* a);
void product_commit();
void product_wait(size_t pending);

}  // namespace emulator
#pragma GCC visibility pop
