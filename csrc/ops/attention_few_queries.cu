// attention_few_queries: softmax(scale q k^T) v for few rows over a long prefix and their own keys
// q, out [A, H, d] bf16, packed; k, v [N, d] bf16, rows kv_stride elements apart: one head that all
// query heads share, so queries are one list of A H rows of d
// keys [0, prefix_length[0]) and [prefix_rows, prefix_rows + own_rows) count, others are not read
// float32 scores, softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 256, 16-byte aligned rows; grid (1, blocks of rows of the list)
// bound: the chain of dependent steps; 4 A H (prefix_length + own_rows) d flop
//
// A block takes the keys in batches of tiles of 16 and rescales, as in arXiv 2205.14135. Before
// pdl_wait() it has its first prefix keys under way to registers and the values to shared memory; own
// keys and queries follow. Scores: warps split the width and the keys, so that queries and keys are
// read once. Softmax: a warp a row. Values: a warp 32 columns.
// Runs on every architecture; attention_few_queries_cluster is faster where it fits.
// Written by the stage in front and read before pdl_wait(): prefix rows of k and v, prefix_length.
// This is safe behind a kernel that waits before it triggers (action_in does).
#include "../common/few_queries.cuh"
#include "../common/mma.cuh"
#include "../common/pdl.cuh"
#include "../common/reduce.cuh"
#include "../common/stream.cuh"
#include "../common/vector.cuh"

namespace flashrt {
namespace few_queries {

constexpr int kDim = 256, kTileKeys = 16;
constexpr int kTileBytes = kTileKeys * kDim * 2;

// kTiles: 16-row tiles of queries a block; kParts x kGroups warps: parts of the width, groups of 8-key
// columns; kHeld: columns a warp holds at a time.
template <int kTiles_, int kParts_, int kGroups_, int kHeld_>
struct Shape {
  static constexpr int kTiles = kTiles_, kParts = kParts_, kGroups = kGroups_;
  static constexpr int kHeld = kHeld_, kRows = 16 * kTiles;
  static constexpr int kWarps = kParts * kGroups, kThreads = 32 * kWarps;
  static constexpr int kChunks = kDim / kParts / 32;
  static constexpr int kBatch = kHeld * kGroups / 2;  // tiles of keys at a time
  static constexpr int kKeys = kBatch * kTileKeys;
  static constexpr int kRowsAWarp = (kRows + kWarps - 1) / kWarps;
  static constexpr int kWide = kDim * kTiles / kWarps;  // columns of the output a warp accumulates
  static constexpr int kMixed = kWide / 8, kWarpsARow = kDim / kWide;
  static_assert(kHeld * kGroups % 2 == 0 && kDim * kTiles % kWarps == 0 && kWide % 16 == 0, "");

  // Shared memory; pitches keep what is read together apart in the banks. Only `rows` are kept.
  static constexpr int kScorePitch = kKeys + 8;        // float32
  static constexpr int kWeightPitch = kKeys * 2 + 16;  // bytes of bf16
  static constexpr int kShrink = kBatch * kTileBytes;
  static constexpr int kTotals = kShrink + kRows * 4;
  static constexpr int kWeights = kTotals + kRows * 4;
  static constexpr int kScores = kWeights + kRows * kWeightPitch;
  static constexpr int kRowBytes = kParts * kScorePitch * 4;
  static constexpr int shared_bytes(int rows) { return kScores + rows * kRowBytes; }
};

// Byte of a unit (16 bytes of a row) in a tile of values. The order of units changes with the row, so that the eight rows
// of an ldmatrix lie in different banks.
__device__ __forceinline__ int unit_at(int row, int unit) {
  return row * kDim * 2 + (unit ^ (row & 7)) * 16;
}

template <class S>
class FewQueries {
 public:
  __device__ __forceinline__ explicit FewQueries(const FewQueriesArgs& args)
      : args_(args), shared_(dynamic_shared()) {
    lane_ = threadIdx.x % 32;
    warp_ = threadIdx.x / 32;
    part_ = warp_ % S::kParts;
    group_ = warp_ / S::kParts;
    first_row_ = blockIdx.y * S::kRows;
    rows_ = min(S::kRows, args.rows - first_row_);
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    length_ = *args_.prefix_length;
    // Tiles of prefix keys and of own keys; own tiles take the last place of a batch.
    prefix_ = (length_ + kTileKeys - 1) / kTileKeys;
    own_ = (args_.own_rows + kTileKeys - 1) / kTileKeys;
    const int spare = S::kBatch - (own_ > 0 ? 1 : 0);
    const int batches = max(own_, (prefix_ + spare - 1) / spare);
    fetch_prefix(0, spare);
    clear();
    pdl_wait();
    fetch_queries();
    fetch_own(0, spare);
#pragma unroll 1
    for (int batch = 0;;) {
      score();
      copy_wait<0>();
      __syncthreads();
      soften(batch, spare);
      __syncthreads();
      accumulate();
      if (++batch >= batches) break;
      __syncthreads();
      fetch_prefix(batch, spare);
      fetch_own(batch, spare);
    }
    store();
  }

 private:
  // First cache row of the tile at a place of a batch, and how many of its rows count.
  __device__ __forceinline__ int2 tile_rows(int batch, int spare, int place) const {
    if (place >= spare) {
      const int first = batch * kTileKeys;
      return {args_.prefix_rows + first, batch < own_ ? args_.own_rows - first : 0};
    }
    const int index = batch * spare + place, first = index * kTileKeys;
    return {first, index < prefix_ ? length_ - first : 0};
  }

  // Keys and values of the prefix, or the block's own, in a batch.
  __device__ __forceinline__ void fetch_prefix(int batch, int spare) {
#pragma unroll
    for (int i = 0; i < S::kHeld; ++i) {
      const int column = i * S::kGroups + group_;
      fetch_keys(i, column, tile_rows(batch, spare, column / 2), column / 2 < spare);
    }
    fetch_values(batch, spare, 0, spare);
  }
  __device__ __forceinline__ void fetch_own(int batch, int spare) {
    if (spare == S::kBatch) return;
#pragma unroll
    for (int i = 0; i < S::kHeld; ++i) {
      if ((i + 1) * S::kGroups <= 2 * (S::kBatch - 1)) continue;
      const int column = i * S::kGroups + group_;
      fetch_keys(i, column, tile_rows(batch, spare, column / 2), column / 2 >= spare);
    }
    fetch_values(batch, spare, spare, S::kBatch);
  }

  __device__ __forceinline__ void fetch_keys(int i, int column, int2 rows, bool wanted) {
    const int row = column % 2 * 8 + lane_ / 4;
    const bool keep = wanted && row < rows.y;
    const bf16* p = args_.k + static_cast<size_t>(keep ? rows.x + row : 0) * args_.kv_stride +
                    part_ * (kDim / S::kParts) + lane_ % 4 * 8;
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      load_fresh(keys_[i][chunk], p + chunk * 32, keep);
    }
  }

  __device__ __forceinline__ void fetch_values(int batch, int spare, int first, int last) {
#pragma unroll 1
    for (int i = first * kTileKeys + warp_; i < last * kTileKeys; i += S::kWarps) {
      const int place = i / kTileKeys, row = i % kTileKeys;
      const int2 rows = tile_rows(batch, spare, place);
      const bool keep = row < rows.y;
      const bf16* p =
          args_.v + static_cast<size_t>(keep ? rows.x + row : 0) * args_.kv_stride + lane_ * 8;
      copy16_async(shared_address(shared_ + place * kTileBytes + unit_at(row, lane_)), p, keep);
    }
    copy_commit();
  }

  __device__ __forceinline__ void fetch_queries() {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile * 16 + half * 8 + lane_ / 4;
        const bf16* p = args_.q + static_cast<size_t>(first_row_ + row) * kDim + part_ * (kDim / S::kParts) + lane_ % 4 * 8;
#pragma unroll
        for (int chunk = 0; chunk < S::kChunks; ++chunk) {
          load_fresh(queries_[tile][chunk][half], p + chunk * 32, row < rows_);
        }
      }
    }
  }

  __device__ __forceinline__ float* scores(int part, int row) const {
    return reinterpret_cast<float*>(shared_ + S::kScores) + (row * S::kParts + part) * S::kScorePitch;
  }

  // This warp's part of the scores, for all query rows and its columns of keys.
  __device__ __forceinline__ void score() const {
    float sums[S::kTiles][S::kHeld][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        const uint4 &a = queries_[tile][chunk][0], &b = queries_[tile][chunk][1];
#pragma unroll
        for (int i = 0; i < S::kHeld; ++i) {
          mma_k16(sums[tile][i], {a.x, b.x, a.y, b.y}, keys_[i][chunk].x, keys_[i][chunk].y);
        }
#pragma unroll
        for (int i = 0; i < S::kHeld; ++i) {
          mma_k16(sums[tile][i], {a.z, b.z, a.w, b.w}, keys_[i][chunk].z, keys_[i][chunk].w);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile * 16 + half * 8 + lane_ / 4;
        float* target = scores(part_, row) + lane_ % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::kHeld; ++i) {
          store_shared_if(row < rows_, target + (i * S::kGroups + group_) * 8,
                          {sums[tile][i][2 * half], sums[tile][i][2 * half + 1]});
        }
      }
    }
  }

  // Scores of a row -> weights exp(score - top) as bf16; a warp a row, keys over its lanes.
  __device__ __forceinline__ void soften(int batch, int spare) {
    constexpr int kSteps = (S::kKeys + 31) / 32;
    bool counts[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int key = step * 32 + lane_, place = key / kTileKeys;
      counts[step] = key < S::kKeys && key % kTileKeys < tile_rows(batch, spare, place).y;
    }
#pragma unroll
    for (int turn = 0; turn < S::kRowsAWarp; ++turn) {
      const int row = turn * S::kWarps + warp_;
      if (row >= rows_) break;
      float s[kSteps], top = tops_[turn];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        float sum = 0.0f;
        if (S::kKeys % 32 == 0 || step * 32 + lane_ < S::kKeys) {
#pragma unroll
          for (int part = 0; part < S::kParts; ++part) sum += scores(part, row)[step * 32 + lane_];
        }
        s[step] = counts[step] ? sum * args_.scale_log2 : -INFINITY;
        top = fmaxf(top, s[step]);
      }
#pragma unroll
      for (int step = 16; step > 0; step /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
      // Without any key yet the sums are zero, whatever they are scaled by.
      const float base = top == -INFINITY ? 0.0f : top, shrink = exp2_fast(tops_[turn] - base);
      tops_[turn] = top;
      sums_[turn] *= shrink;
      if (lane_ == 0) reinterpret_cast<float*>(shared_ + S::kShrink)[row] = shrink;
      bf16* weights = reinterpret_cast<bf16*>(shared_ + S::kWeights + row * S::kWeightPitch);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const float p = exp2_fast(s[step] - base);
        sums_[turn] += p;  // of this lane's keys
        if (S::kKeys % 32 == 0 || step * 32 + lane_ < S::kKeys) {
          weights[step * 32 + lane_] = __float2bfloat16_rn(p);
        }
      }
    }
  }

  // Product with the values: 16 query rows, kWide columns a warp.
  __device__ __forceinline__ void accumulate() {
    const int first = warp_ / S::kWarpsARow * 16, group = warp_ % S::kWarpsARow;
    const float* shrink = reinterpret_cast<const float*>(shared_ + S::kShrink) + first + lane_ / 4;
    const float low = shrink[0], high = shrink[8];
#pragma unroll
    for (int n = 0; n < S::kMixed; ++n) {
      mixed_[n][0] *= low, mixed_[n][1] *= low, mixed_[n][2] *= high, mixed_[n][3] *= high;
    }
    const unsigned char* weights =
        shared_ + S::kWeights + (first + lane_ % 16) * S::kWeightPitch + lane_ / 16 * 16;
    const int key = lane_ % 16, unit = group * S::kMixed + lane_ / 16;
#pragma unroll
    for (int tile = 0; tile < S::kBatch; ++tile) {
      uint32_t a[4];
      ldmatrix_x4(a, shared_address(weights + tile * kTileKeys * 2));
      const unsigned char* values = shared_ + tile * kTileBytes;
#pragma unroll
      for (int n = 0; n < S::kMixed; n += 2) {
        uint32_t b[4];
        ldmatrix_x4_trans(b, shared_address(values + unit_at(key, unit + n)));
        mma_k16(mixed_[n], a, b[0], b[1]);
        mma_k16(mixed_[n + 1], a, b[2], b[3]);
      }
    }
  }

  // The sums of the rows come through shared memory.
  __device__ __forceinline__ void store() {
    float* totals = reinterpret_cast<float*>(shared_ + S::kTotals);
#pragma unroll
    for (int turn = 0; turn < S::kRowsAWarp; ++turn) {
      const float sum = warp_sum(sums_[turn]);
      if (turn * S::kWarps + warp_ < S::kRows) totals[turn * S::kWarps + warp_] = sum;
    }
    __syncthreads();
    const int first = warp_ / S::kWarpsARow * 16, group = warp_ % S::kWarpsARow;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first + half * 8 + lane_ / 4;
      const float total = totals[row];
      bf16* target = args_.out + static_cast<size_t>(first_row_ + row) * kDim + group * S::kWide + lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < S::kMixed; ++n) {
        store_if(row < rows_, target + n * 8,
                 pack2(mixed_[n][2 * half] / total, mixed_[n][2 * half + 1] / total));
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int turn = 0; turn < S::kRowsAWarp; ++turn) tops_[turn] = -INFINITY, sums_[turn] = 0.0f;
#pragma unroll
    for (int n = 0; n < S::kMixed; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mixed_[n][i] = 0.0f;
    }
  }

  FewQueriesArgs args_;
  unsigned char* shared_;
  int lane_, warp_, part_, group_, first_row_, rows_;
  int length_, prefix_, own_;
  uint4 keys_[S::kHeld][S::kChunks] = {}, queries_[S::kTiles][S::kChunks][2] = {};
  float mixed_[S::kMixed][4];
  float tops_[S::kRowsAWarp], sums_[S::kRowsAWarp];
};

// Shared memory: kScores bytes, and kRowBytes for each row of queries of a block.
using Blocks = Shape<1, 4, 2, 5>;
static_assert(Blocks::kScores == 43904 && Blocks::kRowBytes == 1408, "as the launcher has it");

}  // namespace few_queries
}  // namespace flashrt

extern "C" __global__ void __launch_bounds__(flashrt::few_queries::Blocks::kThreads, 1)
    attention_few_queries_d256_bf16(const flashrt::bf16* q, const flashrt::bf16* k,
                                    const flashrt::bf16* v, flashrt::bf16* out,
                                    const int* prefix_length, int rows, int prefix_rows, int own_rows,
                                    int kv_stride, float scale) {
  using namespace flashrt::few_queries;
  FewQueries<Blocks>({q, k, v, out, prefix_length, rows, prefix_rows, own_rows, kv_stride,
                      scale * 1.4426950408889634f})
      .run();
}
