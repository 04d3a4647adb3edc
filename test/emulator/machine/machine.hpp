// A GPU's threads on a CPU. Threads of CUDA are fibers; the blocks of a cluster share one of the
// machine's OS threads, and so does all that they wait for. So there is nothing to lock, a run repeats
// exactly, and when no fiber can run, all of them wait for what never comes: that is told, not waited for.
//
// What is asynchronous on a GPU is done as late as it may be, unless a launch says otherwise: a copy when
// its thread waits for it or nobody can do anything else. Until then its target holds poison, the bytes
// 0xff, which are NaN in every format of floating point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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

// A warpgroup's product. It belongs to all four warps: none has it before all have asked for it. Shared
// memory is read when the first of them has waited for it, as others may write there from then on; or, in
// orders 2 and 3, for each warp when that asks. A warp's results are written when it waits itself.
struct Product {
  int columns = 0, element_bytes = 0;
  bool from_registers = false, along_columns = false, keep = false;
  uint64_t a_tile = 0, b_tile = 0;
};
struct Operands {
  float a[64][32], b[32][256];
};
struct SharedProduct {
  Product asked;
  unsigned warps = 0, done = 0;
  std::unique_ptr<Operands> operands;  // once they are read
};
struct Warpgroup {
  std::deque<SharedProduct> products;
  size_t first = 0;  // number of the first of them
  std::vector<Fiber*> waiting;
};
// A warp's part: which product, where its lanes have sums and values.
struct WarpProduct {
  size_t number;
  float* d[32];
  uint32_t a[32][4];
  std::unique_ptr<Operands> operands;  // where this warp's are read alone
};

struct Warp {
  struct Meeting {
    unsigned mask = 0, arrived = 0;
    const char* what = nullptr;
  };
  Fiber* lanes[32] = {};
  unsigned existing = 0, left = 0, index = 0;
  unsigned ready = 0, turn = 0;  // lanes that can run; when the warp is asked, lower is earlier
  Meeting meetings[32];  // by the first lane of their mask
  Warpgroup* group = nullptr;
  size_t asked = 0;  // products
  std::deque<WarpProduct> products;
  std::deque<size_t> groups;  // numbers of products at which they end
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
  std::vector<Warpgroup> groups;
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
  // Which warp runs as far as it can, the first (0, 2), the last (1, 3) or one by chance; and whether
  // copies come as late as they may (0, 1), at once (2, 3), or by chance.
  unsigned order;

  bool at_once() const { return order == 2 || order == 3; }
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
