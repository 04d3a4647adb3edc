// attention_few_queries over a cluster: softmax(scale q k^T) v, the keys split over its eight blocks
// q, out [A, H, d] bf16, packed; k, v [N, d] bf16, rows kv_stride elements apart: one head that all
// query heads share, so queries are one list of A H rows of d
// keys [0, prefix_length[0]) and [prefix_rows, prefix_rows + own_rows) count, others are not read
// float32 scores, softmax and sums; probabilities are rounded to bf16 for the second product, and so are
// the eight parts of a result
// needs d = 256, 16-byte aligned rows; grid (8, blocks of rows of the list), cluster 8
// bound: the chain of dependent steps; 4 A H (prefix_length + own_rows) d flop
//
// The keys that count are one list, of which each block takes an eighth: a tile of 16 keys a warp.
// Before pdl_wait() a block has its prefix keys under way to registers and the values to shared
// memory; queries and the block's own keys follow. Both products have keys or values on the 16-row
// side, from registers, and queries or weights on the other one, so that a block may have as few as 8
// rows: what it then sends to its neighbours, all its unnormalised sums, is what takes longest. Sums
// travel in the order of the accumulators, a run of bytes a warp at a time, which takes half as long as
// row by row, and as bf16, as bytes count. Each block finishes 32 of the 256 columns, adding the eight
// parts in order, so equal inputs give equal bits. The greatest scores travel ahead, so that only sums
// are waited for in the end.
// A warpgroup makes its products together (wgmma) on sm_90a, a warp alone (mma.sync) elsewhere.
// Written by the stage in front and read before pdl_wait(): prefix rows of k and v, prefix_length.
// This is safe behind a kernel that waits before it triggers (action_in does).
#include "../common/cluster.cuh"
#include "../common/few_queries.cuh"
#include "../common/mma.cuh"
#include "../common/pdl.cuh"
#include "../common/pushed_sums.cuh"
#include "../common/reduce.cuh"
#include "../common/stream.cuh"
#include "../common/tile_copy.cuh"
#include "../common/vector.cuh"
#include "../common/wgmma.cuh"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace flashrt {
namespace few_queries_cluster {

constexpr int kDim = 256, kSplits = 8, kWarps = 8;
constexpr int kChunks = kDim / 32;        // a lane has 8 values of a chunk, operands of two products
constexpr int kColumns = kDim / kSplits;  // a warp mixes and a block finishes so many
constexpr int kTopPitch = kWarps + 4;     // words; keeps rows apart in the banks
static_assert(kSplits == kWarps, "a warp's columns go to one block");

using Operand = uint32_t[4];  // 16 rows of 16 values, over the lanes of a warp

// kTiles: 8-row tiles of queries a block; kKeyTiles: 16-key tiles, at most one a warp; kBlockScope as in
// few_rows.cuh.
template <int kTiles_, int kKeyTiles_, bool kBlockScope_ = false>
struct Shape {
  static constexpr bool kBlockScope = kBlockScope_;
  static constexpr int kTiles = kTiles_, kKeyTiles = kKeyTiles_;
  static constexpr int kRows = 8 * kTiles, kKeys = 16 * kKeyTiles;
  static_assert(kKeyTiles <= kWarps && 2 * kTiles <= kWarps, "");

  // Shared memory: values, queries (weights take their place), greatest scores of each warp, and what
  // comes from the other blocks.
  static constexpr int kChunkBytes = kRows * 128;  // 64 values of all rows
  static constexpr int kQueries = kKeys * kDim * 2;
  static constexpr int kTops = kQueries + kDim / 64 * kChunkBytes;
  static constexpr int kReceived = kTops + kRows * kTopPitch * 4;
  static constexpr int kReceivedTops = kReceived + kSplits * kRows * kColumns * 2;
  static constexpr int kReceivedSums = kReceivedTops + kSplits * kRows * 4;
  static constexpr int kBarriers = kReceivedSums + kSplits * kRows * 4;
  static constexpr int kSharedBytes = kBarriers + 16;
  static_assert(kQueries % 1024 == 0, "rows of 128 swizzled bytes");
};

// The order of keys in the second product: a lane's two keys of the scores, r and r + 8, are
// neighbours, so that it stores their weights as one word. Place -> key of a tile.
__device__ __forceinline__ int key_of(int place) { return place / 2 + place % 2 * 8; }

// Byte of a unit (16 bytes of a row) in the values. The order of units changes with the row, so that
// the eight rows of an ldmatrix lie in different banks.
__device__ __forceinline__ int unit_at(int row, int unit) {
  return row * kDim * 2 + (unit ^ (row % 4 * 2 + row / 8 % 2)) * 16;
}

// Queries and weights lie as wgmma takes them: chunks of 64 values, rows of 128 bytes whose units are
// swizzled. Byte of a unit in a chunk.
__device__ __forceinline__ int swizzled(int row, int unit) {
  return row * 128 + (unit ^ row % 8) * 16;
}

__device__ __forceinline__ unsigned char* few_queries_memory() {
  extern __shared__ __align__(1024) unsigned char few_queries_bytes[];
  return few_queries_bytes;
}

template <class S>
class FewQueries {
 public:
  __device__ __forceinline__ explicit FewQueries(const FewQueriesArgs& args)
      : args_(args), shared_(few_queries_memory()) {
    lane_ = threadIdx.x % 32;
    warp_ = threadIdx.x / 32;
    rank_ = cluster_rank();
    first_row_ = blockIdx.y * S::kRows;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    length_ = min(*args_.prefix_length, args_.prefix_rows);
    if (threadIdx.x == 0) {
      expect_bytes(barrier(kTopsCame), kSplits * S::kRows * 4);
      expect_bytes(barrier(kSumsCame), kSplits * S::kRows * (kColumns * 2 + 4));
    }
    __syncwarp();
    cluster_arrive_relaxed();
    const int keys = length_ + args_.own_rows, each = (keys + kSplits - 1) / kSplits;
    first_key_ = rank_ * each;
    count_ = max(0, min(each, keys - first_key_));
    const int prefix = max(0, min(count_, length_ - first_key_));
    fetch_values(prefix, count_);
    fetch_keys(prefix);
    cluster_wait();
    settle_keys();
    pdl_wait();
    fetch_queries(prefix);
    __syncthreads();
    float scores[4 * S::kTiles];
    score(scores);
    leave_tops(scores);
    __syncthreads();
    soften(scores);
    mix();
    combine();
  }

 private:
  static constexpr int kTopsCame = 0, kSumsCame = 1;

  __device__ __forceinline__ uint64_t* barrier(int index) const {
    return reinterpret_cast<uint64_t*>(shared_ + S::kBarriers) + index;
  }
  __device__ __forceinline__ void wait(int index) const {
    if constexpr (S::kBlockScope) {
      barrier_wait(shared_address(barrier(index)), 0);
    } else {
      wait_bytes(barrier(index));
    }
  }
  __device__ __forceinline__ float* tops(int row) const {
    return reinterpret_cast<float*>(shared_ + S::kTops) + row * kTopPitch;
  }
  // Cache row of a key of this block.
  __device__ __forceinline__ size_t cache_row(int key) const {
    const int at = first_key_ + key;
    return static_cast<size_t>(at < length_ ? at : at - length_ + args_.prefix_rows);
  }

  // This warp's keys as far as they are among the block's first `last`, zeros for others, in the order
  // in which products take them.
  __device__ __forceinline__ void fetch_keys(int last) {
    const int low = warp_ * 16 + lane_ / 4, high = low + 8;
    const bf16* p = args_.k + lane_ % 4 * 8;
    const bf16* low_row = p + (low < last ? cache_row(low) : 0) * args_.kv_stride;
    const bf16* high_row = p + (high < last ? cache_row(high) : 0) * args_.kv_stride;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      uint4 x = {0u, 0u, 0u, 0u}, y = {0u, 0u, 0u, 0u};
      load_fresh(x, low_row + chunk * 32, low < last);
      load_fresh(y, high_row + chunk * 32, high < last);
      Operand &a = keys_[2 * chunk], &b = keys_[2 * chunk + 1];
      a[0] = x.x, a[1] = y.x, a[2] = x.y, a[3] = y.y;
      b[0] = x.z, b[1] = y.z, b[2] = x.w, b[3] = y.w;
    }
  }
  // The keys have come and lie in order here, not where they are used.
  __device__ __forceinline__ void settle_keys() {
#pragma unroll
    for (int step = 0; step < 2 * kChunks; ++step) {
      settle(keys_[step]);
    }
  }

  // The block's values but those of keys [first, last); zeros for what has no key, nor a weight.
  __device__ __forceinline__ void fetch_values(int first, int last) {
#pragma unroll 2
    for (int key = warp_; key < S::kKeys; key += kWarps) {
      if (key < first || key >= last) fetch_value(key);
    }
  }
  __device__ __forceinline__ void fetch_value(int key) {
    const bf16* p = args_.v + (key < count_ ? cache_row(key) : 0) * args_.kv_stride + lane_ * 8;
    copy16_async(shared_address(shared_ + unit_at(key, lane_)), p, key < count_);
  }

  // Queries, one chunk of 32 dimensions a warp, and then the keys and values of this block from
  // `own` on. A lane has eight consecutive values of keys, as its operands of two products; so the
  // queries' words go where their products take them: the four lanes of a row trade 4 x 4 words.
  __device__ __forceinline__ void fetch_queries(int own) {
    uint4 q[S::kTiles] = {};
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
      const int row = first_row_ + tile * 8 + lane_ / 4;
      const bf16* p = args_.q + static_cast<size_t>(row) * kDim + warp_ * 32 + lane_ % 4 * 8;
      load_fresh(q[tile], p, row < args_.rows);
    }
    if (own < count_) {
#pragma unroll 1
      for (int key = own + warp_; key < count_; key += kWarps) fetch_value(key);
      if (own < warp_ * 16 + 16 && warp_ * 16 < count_) fetch_keys(count_);
    }
    copy_commit();
    const int row = lane_ / 4;
    unsigned char* chunk = shared_ + S::kQueries + warp_ / 2 * S::kChunkBytes + lane_ % 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned char* target = chunk + swizzled(row, warp_ % 2 * 4 + i);
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        const uint32_t words[4] = {q[tile].x, q[tile].y, q[tile].z, q[tile].w};
        *reinterpret_cast<uint32_t*>(target + tile * 1024) = words[i];
      }
    }
    fence_products();
    copy_wait<0>();
  }

  // Makes what this thread stored visible to the tensor cores; a barrier follows.
  __device__ __forceinline__ static void fence_products() {
#ifdef FLASHRT_SM90A
    publish_shared();
#endif
  }

  // Where a lane reads two steps' operands of a tile of rows of queries or weights.
  __device__ __forceinline__ uint32_t operands_at(int step, int tile) const {
    return shared_address(shared_ + S::kQueries + step / 4 * S::kChunkBytes +
                          swizzled(tile * 8 + lane_ % 8, step % 4 * 2 + lane_ / 8));
  }

  // d = a b over kSteps steps of 16 values: a from registers, b the queries or the weights.
  template <int kSteps, class Operands>
  __device__ __forceinline__ void multiply(float (&d)[4 * S::kTiles], const Operands& operand) const {
#ifdef FLASHRT_SM90A
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t chunk = shared_address(shared_ + S::kQueries + step / 4 * S::kChunkBytes);
      const uint64_t b = wgmma_step(wgmma_tile(chunk), step % 4);
      WgmmaRegisters<S::kRows>::run(d, operand(step), b, step > 0);
    }
    wgmma_commit();
#else
    float sums[S::kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        uint32_t b[4];
        ldmatrix_x4(b, operands_at(step, tile));
        mma_k16(sums[tile], operand(step), b[0], b[1]);
        if (step + 1 < kSteps) mma_k16(sums[tile], operand(step + 1), b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * S::kTiles; ++i) d[i] = sums[i / 4][i % 4];
#endif
  }
  __device__ __forceinline__ static void begin() {
#ifdef FLASHRT_SM90A
    wgmma_begin();
#endif
  }
  // Until at most kPending products are under way.
  template <int kPending>
  __device__ __forceinline__ static void finish() {
#ifdef FLASHRT_SM90A
    wgmma_wait<kPending>();
#endif
  }

  // Scores of this warp's keys (lane / 4 and + 8) for rows lane % 4 * 2 and + 1 of each tile.
  __device__ __forceinline__ void score(float (&scores)[4 * S::kTiles]) const {
    begin();
    multiply<2 * kChunks>(scores, [this](int step) -> const Operand& { return keys_[step]; });
    finish<0>();
#pragma unroll
    for (int i = 0; i < 4 * S::kTiles; ++i) {
      const bool counts = warp_ * 16 + i / 2 % 2 * 8 + lane_ / 4 < count_;
      scores[i] = counts ? scores[i] * args_.scale_log2 : -INFINITY;
    }
  }

  // The greatest score of each row among this warp's keys, for the other warps. The lanes that have
  // the same rows halve their number of rows with each step, down to one.
  __device__ __forceinline__ void leave_tops(const float (&scores)[4 * S::kTiles]) const {
    float top[2 * S::kTiles];
#pragma unroll
    for (int i = 0; i < 2 * S::kTiles; ++i) {
      top[i] = fmaxf(scores[i / 2 * 4 + i % 2], scores[i / 2 * 4 + i % 2 + 2]);
    }
    int mine = 0;
#pragma unroll
    for (int step = 16, left = 2 * S::kTiles; step >= 4; step /= 2) {
      if (left == 1) {
        top[0] = fmaxf(top[0], __shfl_xor_sync(kAllLanes, top[0], step));
        continue;
      }
      left /= 2;
      const bool upper = lane_ & step;
#pragma unroll
      for (int i = 0; i < S::kTiles; ++i) {
        if (i >= left) continue;
        const float keep = select(upper, top[i + left], top[i]);
        const float give = select(upper, top[i], top[i + left]);
        top[i] = fmaxf(keep, __shfl_xor_sync(kAllLanes, give, step));
      }
      mine += upper ? left : 0;
    }
    tops(mine / 2 * 8 + lane_ % 4 * 2 + mine % 2)[warp_] = top[0];
  }

  // The block's greatest scores to the block that finishes this warp's columns, and this warp's scores
  // -> weights exp(score - top) as bf16.
  __device__ __forceinline__ void soften(const float (&scores)[4 * S::kTiles]) const {
    const float4* all = reinterpret_cast<const float4*>(tops(lane_ % S::kRows));
    const float4 a = all[0], b = all[1];
    const float top = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)),
                            fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
    if (warp_ < S::kKeyTiles) {
      // Without any key the sums are zero, whatever they are scaled by.
      const float offset = top == -INFINITY ? 0.0f : top;
      unsigned char* chunk = shared_ + S::kQueries + warp_ / 4 * S::kChunkBytes + lane_ / 4 % 4 * 4;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int at = lane_ % 4 * 2 + row;
        unsigned char* target = chunk + swizzled(at, warp_ % 4 * 2 + lane_ / 16);
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) {
          const float from = __shfl_sync(kAllLanes, offset, tile * 8 + at);
          const float low = scores[4 * tile + row], high = scores[4 * tile + row + 2];
          *reinterpret_cast<uint32_t*>(target + tile * 1024) =
              pack2(exp2_fast(low - from), exp2_fast(high - from));
        }
      }
    }
    fence_products();  // before the push, lest it waits for that too
    const uint32_t base = remote_address(shared_, warp_);
    push(base + S::kReceivedTops + (rank_ * S::kRows + lane_) * 4,
         base + S::kBarriers + kTopsCame * 8, top, lane_ < S::kRows);
  }

  // Product of values and weights, this warp's 32 columns, to the block that finishes them; and the
  // sums of the weights, as the product with ones.
  __device__ __forceinline__ void mix() const {
    const int unit = warp_ * 4 + lane_ / 8 % 2, key = key_of(lane_ / 16 * 8 + lane_ % 8);
    const uint32_t left = shared_address(shared_ + unit_at(key, unit));
    const uint32_t right = shared_address(shared_ + unit_at(key, unit + 2));
    Operand values[2][S::kKeyTiles];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int at = 0; at < S::kKeyTiles; ++at) {
        ldmatrix_x4_trans(values[half][at], (half == 0 ? left : right) + at * 16 * kDim * 2);
      }
    }
    __syncthreads();
    float mixed[2][4 * S::kTiles];
    begin();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      multiply<S::kKeyTiles>(mixed[half],
                             [&](int step) -> const Operand& { return values[half][step]; });
    }
    const uint32_t base = remote_address(shared_, warp_);
    if (warp_ < S::kTiles) send_sums(warp_);
    finish<1>();
    send(base, 0, mixed[0]);
    finish<0>();
    send(base, 1, mixed[1]);
  }

  // The sums of the weights of a tile of rows: their product with ones. Every lane / 4 has the same
  // ones, and sends them to the block of that number.
  __device__ __forceinline__ void send_sums(int tile) const {
    constexpr uint32_t kOnes = 0x3f803f80u;
    float sums[2][4] = {};
#pragma unroll
    for (int step = 0; step < S::kKeyTiles; step += 2) {
      uint32_t b[4];
      ldmatrix_x4(b, operands_at(step, tile));
      mma_k16(sums[0], {kOnes, kOnes, kOnes, kOnes}, b[0], b[1]);
      if (step + 1 < S::kKeyTiles) mma_k16(sums[1], {kOnes, kOnes, kOnes, kOnes}, b[2], b[3]);
    }
    const uint32_t other = remote_address(shared_, lane_ / 4);
    push(other + S::kReceivedSums + (rank_ * S::kRows + tile * 8 + lane_ % 4 * 2) * 4,
         other + S::kBarriers + kSumsCame * 8,
         float2{sums[0][0] + sums[1][0], sums[0][1] + sums[1][1]});
  }

  __device__ __forceinline__ void send(uint32_t base, int half, const float (&v)[4 * S::kTiles]) const {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
      const int at = ((rank_ * 2 + half) * S::kTiles + tile) * 32 + lane_;
      NarrowSums::send(base + S::kReceived + at * NarrowSums::kBytes,
                       base + S::kBarriers + kSumsCame * 8,
                       {v[4 * tile], v[4 * tile + 1], v[4 * tile + 2], v[4 * tile + 3]});
    }
  }

  // This block's columns of all rows: four values a thread, as a lane of the second product has them.
  __device__ __forceinline__ void combine() const {
    if (warp_ >= 2 * S::kTiles) return;  // the others keep the block until all has come
    const int half = warp_ / S::kTiles, tile = warp_ % S::kTiles;
    const int pair = tile * 4 + lane_ % 4;
    const float2* tops = reinterpret_cast<const float2*>(shared_ + S::kReceivedTops) + pair;
    const float2* sums = reinterpret_cast<const float2*>(shared_ + S::kReceivedSums) + pair;
    const unsigned char* received =
        shared_ + S::kReceived + (warp_ * 32 + lane_) * NarrowSums::kBytes;
    wait(kTopsCame);
    float2 factor[kSplits], top = {-INFINITY, -INFINITY}, total = {0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < kSplits; ++from) {
      factor[from] = tops[from * (S::kRows / 2)];
      top = {fmaxf(top.x, factor[from].x), fmaxf(top.y, factor[from].y)};
    }
#pragma unroll
    for (int from = 0; from < kSplits; ++from) {
      factor[from] = {exp2_fast(factor[from].x - top.x), exp2_fast(factor[from].y - top.y)};
    }
    wait(kSumsCame);
    float4 v = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < kSplits; ++from) {
      const float4 part = NarrowSums::read(received + from * (2 * S::kTiles * 32) * NarrowSums::kBytes);
      const float2 f = factor[from], sum = sums[from * (S::kRows / 2)];
      total = {total.x + f.x * sum.x, total.y + f.y * sum.y};
      v = {v.x + f.x * part.x, v.y + f.y * part.y, v.z + f.x * part.z, v.w + f.y * part.w};
    }
    const float low = __fdividef(1.0f, total.x), high = __fdividef(1.0f, total.y);
    v = {v.x * low, v.y * high, v.z * low, v.w * high};
    // A lane has column lane / 4 (and + 8) of two rows; it trades one row for the neighbour's column
    // of the other, so that it stores pairs.
    const bool odd = lane_ / 4 % 2;
    const float near = __shfl_xor_sync(kAllLanes, select(odd, v.x, v.y), 4);
    const float far = __shfl_xor_sync(kAllLanes, select(odd, v.z, v.w), 4);
    const int row = first_row_ + tile * 8 + lane_ % 4 * 2 + odd;
    bf16* target = args_.out + static_cast<size_t>(row) * kDim + rank_ * kColumns + half * 16 +
                   lane_ / 8 * 2;
    store_if(row < args_.rows, target, odd ? pack2(near, v.y) : pack2(v.x, near));
    store_if(row < args_.rows, target + 8, odd ? pack2(far, v.w) : pack2(v.z, far));
  }

  FewQueriesArgs args_;
  unsigned char* shared_;
  int lane_, warp_, rank_, first_row_;
  int length_, first_key_, count_;
  Operand keys_[2 * kChunks];
};

}  // namespace few_queries_cluster
}  // namespace flashrt

// Named for the rows of a block and for the most keys.
#define FLASHRT_FEW_QUERIES_CLUSTER(rows, keys, bytes, blocks)                                     \
  extern "C" __global__ void __launch_bounds__(256, blocks)                                        \
      attention_few_queries_d256_##rows##_##keys##_bf16_cluster(                                   \
          const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v,                  \
          flashrt::bf16* out, const int* prefix_length, int all_rows, int prefix_rows,             \
          int own_rows, int kv_stride, float scale) {                                              \
    using Blocks = flashrt::few_queries_cluster::Shape<rows / 8, keys / 128, rows == 8>;           \
    static_assert(Blocks::kSharedBytes == bytes, "as the launcher has it");                        \
    flashrt::few_queries_cluster::FewQueries<Blocks>(                                              \
        {q, k, v, out, prefix_length, all_rows, prefix_rows, own_rows, kv_stride,                  \
         scale * 1.4426950408889634f})                                                             \
        .run();                                                                                    \
  }

FLASHRT_FEW_QUERIES_CLUSTER(8, 640, 50064, 2)
FLASHRT_FEW_QUERIES_CLUSTER(8, 1024, 74640, 2)
FLASHRT_FEW_QUERIES_CLUSTER(16, 640, 59152, 2)
FLASHRT_FEW_QUERIES_CLUSTER(16, 1024, 83728, 2)
FLASHRT_FEW_QUERIES_CLUSTER(32, 1024, 101904, 1)

#endif
