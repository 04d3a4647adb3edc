// Attention of 16 rows of one head over its keys, by warps that each take tiles of 16 keys in turn, with
// memory, copies and a softmax of their own, and join at the end (attention_heads.cu). Keys that some rows
// of a tile see have weights of zero for the others: what they hold must be numbers.
//
// With kBiased keys count as key_bias says, and one of -inf not at all: it is fetched with its tile, but
// its score is set and its values are cleared, so that it may hold anything. With kSplit the blocks of a
// cluster take tiles in turn; each pushes the others the sums of the rows that they finish. Their first tiles
// may come before the kernels in front have come to their end, but for the keys that these write.
#pragma once

#include "activation.cuh"
#include "cluster.cuh"
#include "mma.cuh"
#include "quantise.cuh"
#include "stream.cuh"
#include "tile_copy.cuh"
#include "vector.cuh"
#include "warps.cuh"

namespace flashrt {
namespace heads {

constexpr int kRows = 16, kKeys = 16;
constexpr float kLog2E = 1.4426950408889634f;

// kStages tiles of keys and values a warp in shared memory. kOnce: there are no more than a tile a warp.
template <int kDim_, int kStages_, int kBarrier_ = 0, bool kBiased_ = false, int kSplit_ = 1,
          bool kOnce_ = false>
struct Shape {
  static constexpr bool kBiased = kBiased_, kOnce = kOnce_;
  static_assert(!kOnce || kStages_ == 1, "one tile");
  static constexpr int kSplit = kSplit_, kOwnRows = kRows / kSplit;  // rows that a block finishes
  static constexpr int kDim = kDim_, kStages = kStages_, kWarps = 4;
  static constexpr int kBarrier = kBarrier_;  // of these warps, where the block has others
  static constexpr int kPitch = kDim + 8;  // elements; eight rows of an ldmatrix lie in different banks
  static constexpr int kTile = kKeys * kPitch;
  static constexpr int kOutPitch = kDim + 4;  // floats
  static constexpr int kTileBytes = kWarps * kStages * 2 * kTile * 2;
  // Partial results take the place of keys and values.
  static constexpr int kPartBytes = kWarps * (kRows * kOutPitch + 2 * kRows) * 4;
  static constexpr int kShared = kTileBytes > kPartBytes ? kTileBytes : kPartBytes;
  // Biases of the tiles; what the blocks of a cluster push, tops and sums behind, and its barrier.
  static constexpr int kBias = kShared;
  static constexpr int kReceived = kBias + (kBiased ? kWarps * kStages * kKeys * 4 : 0);
  static constexpr int kReceivedStats = kReceived + (kSplit > 1 ? kRows * kDim * 4 : 0);
  static constexpr int kBarrierAt = kReceivedStats + (kSplit > 1 ? kRows * 8 : 0);
  static constexpr int kSharedBytes = kBarrierAt + (kSplit > 1 ? 16 : 0);
  static_assert(kRows % kSplit == 0, "whole rows a block");
  static_assert(kPitch / 8 % 2 == 1, "no bank conflicts");
};

struct Args {
  const bf16 *q, *k, *v;
  const int* prefix_length;
  int rows, keys, prefix_rows;  // rows and keys of a run
  int q_stride, k_stride, v_stride;
  int group, causal;  // query heads that share a head of keys
  float scale_log2;
  const float* key_bias = nullptr;  // with kBiased
};

template <class S>
class Heads {
  static constexpr int kDim = S::kDim, kSteps = kDim / 16, kColumns = kDim / 8, kWarps = S::kWarps;

 public:
  // Rows from first_row on, of a run; `shared` has S::kSharedBytes.
  __device__ __forceinline__ Heads(const Args& args, unsigned char* shared, int first_row, int head,
                                   int run)
      : args_(args),
        shared_(reinterpret_cast<bf16*>(shared)),
        first_row_(first_row),
        head_(head),
        run_(run) {
    lane_ = threadIdx.x % 32;
    warp_ = threadIdx.x / 32;
  }

  // The first of this warp's keys under way.
  __device__ __forceinline__ void begin() {
    length_ = args_.prefix_length ? *args_.prefix_length : args_.prefix_rows;
    end_ = args_.causal ? min(args_.keys, first_row_ + kRows) : args_.keys;
    const int head = head_ / args_.group;
    k_ = args_.k + static_cast<size_t>(run_) * args_.keys * args_.k_stride + head * kDim;
    v_ = args_.v + static_cast<size_t>(run_) * args_.keys * args_.v_stride + head * kDim;
    const int tiles = (end_ + kKeys - 1) / kKeys;
    if constexpr (S::kSplit > 1) {
      constexpr int kTurn = S::kSplit * kWarps;
      const int first = static_cast<int>(cluster_rank()) * kWarps + warp_;
      own_ = tiles > first ? (tiles - first + kTurn - 1) / kTurn : 0;
    } else {
      own_ = tiles > warp_ ? (tiles - warp_ + kWarps - 1) / kWarps : 0;
    }
#pragma unroll
    for (int i = 0; i < S::kStages; ++i) {
      if constexpr (S::kSplit > 1) {
        fetch(i, i < own_, late_[i]);
      } else {
        fetch(i, i < own_);
      }
    }
  }

  // With kSplit, in front of begin(): that leaves out the keys that `fresh` names, `count` rows of the lists
  // of all runs.
  __device__ __forceinline__ void mark_fresh(const int* fresh, int count) {
    static_assert(S::kSplit > 1, "keys split over a cluster");
#pragma unroll
    for (int i = 0; i < S::kStages; ++i) late_[i] = 0u;
    for (int at = 0; at < count; at += 32) {
      const bool some = at + lane_ < count;
      const int key = some ? fresh[at + lane_] - run_ * args_.keys : -1;
#pragma unroll
      for (int i = 0; i < S::kStages; ++i) {
        const int place = key - first_key(i);
        unsigned mine = key >= 0 && place >= 0 && place < kKeys ? 1u << place : 0u;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) mine |= __shfl_xor_sync(0xffffffffu, mine, step);
        late_[i] |= mine;
      }
    }
  }

  // Whether this block's warps take a key, and where in shared memory it and its value go that begin() has left
  // out; null where they are fetched later, from where they are kept.
  __device__ __forceinline__ static bool takes(int key) {
    return key / kKeys / kWarps % S::kSplit == static_cast<int>(cluster_rank());
  }
  __device__ __forceinline__ bf16* fresh_place(int key, int which) const {
    const int turn = key / kKeys / (kWarps * S::kSplit), warp = key / kKeys % kWarps;
    if (turn >= S::kStages) return nullptr;
    return shared_ + ((warp * S::kStages + turn) * 2 + which) * S::kTile + key % kKeys * S::kPitch;
  }

  // Fetches what begin() has left out.
  __device__ __forceinline__ void fetch_fresh() {
    unsigned any = 0u;
#pragma unroll
    for (int i = 0; i < S::kStages; ++i) {
      any |= late_[i];
      for (unsigned left = late_[i]; left; left &= left - 1) {
        const int row = __ffs(static_cast<int>(left)) - 1;
        const size_t at = first_key(i) + row;
        for (int column = lane_; column < 2 * kColumns; column += 32) {
          const int which = column / kColumns, from = column % kColumns * 8;
          copy16_async(shared_address(tile(i, which) + row * S::kPitch + from),
                       which ? v_ + at * args_.v_stride + from : k_ + at * args_.k_stride + from, true);
        }
      }
    }
    if (any) {
      copy_commit();
      copy_wait<0>();
    }
  }

  // A lane takes neighbours in pairs, as the products want them.
  __device__ __forceinline__ void fetch_queries() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row_ + half * 8 + lane_ / 4;
      const bf16* p = args_.q + (static_cast<size_t>(run_) * args_.rows + row) * args_.q_stride +
                      head_ * kDim + lane_ % 4 * 2;
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        queries_[k][half] = row < args_.rows ? load_fresh1(p + k * 16) : 0u;
        queries_[k][half + 2] = row < args_.rows ? load_fresh1(p + k * 16 + 8) : 0u;
      }
    }
  }

  // The same from 16 rows in shared memory, S::kPitch elements apart.
  __device__ __forceinline__ void load_queries(const bf16* rows) {
    const bf16* p = rows + lane_ % 16 * S::kPitch + lane_ / 16 * 8;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) ldmatrix_x4(queries_[k], shared_address(p + k * 16));
  }

  // This warp's share of keys; what it leaves in registers is joined by store().
  __device__ __forceinline__ void run() {
    if constexpr (S::kOnce) {
      copy_wait<0>();
      __syncwarp();
      if (own_ > 0) step(0);
    } else {
#pragma unroll 1
      for (int i = 0; i < own_; ++i) {
        copy_wait<S::kStages - 1>();
        __syncwarp();
        step(i);
        __syncwarp();  // nobody reads the tile any more
        fetch(i + S::kStages, i + S::kStages < own_);
      }
      copy_wait<0>();
    }
    sync();
  }

  // Sums of a row over the four lanes that share it.
  __device__ __forceinline__ void join_lanes() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum_[half] += __shfl_xor_sync(0xffffffffu, sum_[half], 1);
      sum_[half] += __shfl_xor_sync(0xffffffffu, sum_[half], 2);
    }
  }

  // By one thread, before it arrives at the cluster.
  __device__ __forceinline__ void expect_pushes() const {
    expect_bytes(pushed(), S::kSplit * S::kOwnRows * (kDim * 4 + 8));
  }

  // The rows that this block finishes, of sums from all blocks of the cluster.
  template <class Out>
  __device__ __forceinline__ void store_split(Out* out, int out_stride, float factor) {
    float* parts = reinterpret_cast<float*>(shared_);
    float* stats = parts + kWarps * kRows * S::kOutPitch;
    leave(parts, stats);
    sync();
    const uint32_t mine = cluster_rank();
    for (int i = threadIdx.x; i < kRows * kColumns; i += 32 * kWarps) {
      const int row = i / kColumns, column = i % kColumns * 8;
      float top = stats[row], sum = 0.0f, v[8] = {};
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) top = fmaxf(top, stats[warp * 2 * kRows + row]);
      const float base = top == -INFINITY ? 0.0f : top;  // no key of this block counts
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        const float share = exp2_fast(stats[warp * 2 * kRows + row] - base);
        float part[8];
        load8(parts + (warp * kRows + row) * S::kOutPitch + column, part);
        sum += share * stats[warp * 2 * kRows + kRows + row];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = fmaf(part[j], share, v[j]);
      }
      const uint32_t target = remote_address(shared_, row / S::kOwnRows);
      const uint32_t barrier = target + S::kBarrierAt;
      const int at = mine * S::kOwnRows + row % S::kOwnRows;
      const uint32_t place = target + S::kReceived + (at * kDim + column) * 4;
      push(place, barrier, float4{v[0], v[1], v[2], v[3]});
      push(place + 16, barrier, float4{v[4], v[5], v[6], v[7]});
      if (column == 0) push(target + S::kReceivedStats + at * 8, barrier, float2{top, sum});
    }
    wait_bytes(pushed());
    for (int i = threadIdx.x; i < S::kOwnRows * kColumns; i += 32 * kWarps) {
      const int own = i / kColumns, column = i % kColumns * 8;
      const int row = first_row_ + static_cast<int>(mine) * S::kOwnRows + own;
      if (row >= args_.rows) break;
      const unsigned char* bytes = reinterpret_cast<const unsigned char*>(shared_);
      const float2* got = reinterpret_cast<const float2*>(bytes + S::kReceivedStats) + own;
      float top = got[0].x, shares[S::kSplit], sum = 0.0f, v[8] = {};
#pragma unroll
      for (int from = 1; from < S::kSplit; ++from) top = fmaxf(top, got[from * S::kOwnRows].x);
#pragma unroll
      for (int from = 0; from < S::kSplit; ++from) {
        shares[from] = exp2_fast(got[from * S::kOwnRows].x - top);
        sum += shares[from] * got[from * S::kOwnRows].y;
      }
      const float inverse = 1.0f / sum;
#pragma unroll
      for (int from = 0; from < S::kSplit; ++from) {
        float part[8];
        load8(reinterpret_cast<const float*>(bytes + S::kReceived) +
                  (from * S::kOwnRows + own) * kDim + column, part);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = fmaf(part[j], shares[from] * inverse, v[j]);
      }
      const size_t at = static_cast<size_t>(run_) * args_.rows + row;
      store8(out + at * out_stride + head_ * kDim + column, v, factor);
    }
  }

  template <class Out>
  __device__ __forceinline__ void store(Out* out, int out_stride, float factor) {
    float* parts = reinterpret_cast<float*>(shared_);
    float* stats = parts + kWarps * kRows * S::kOutPitch;
    leave(parts, stats);
    sync();
    for (int i = threadIdx.x; i < kRows * kColumns; i += 32 * kWarps) {
      const int row = i / kColumns, column = i % kColumns * 8;
      if (first_row_ + row >= args_.rows) break;
      float top = stats[row], shares[kWarps], sum = 0.0f, v[8] = {};
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) top = fmaxf(top, stats[warp * 2 * kRows + row]);
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        // Without any key of a warp its sum is zero, and so is its part.
        shares[warp] = exp2_fast(stats[warp * 2 * kRows + row] - top);
        sum += shares[warp] * stats[warp * 2 * kRows + kRows + row];
      }
      const float inverse = 1.0f / sum;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        float part[8];
        load8(parts + (warp * kRows + row) * S::kOutPitch + column, part);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = fmaf(part[j], shares[warp] * inverse, v[j]);
      }
      const size_t at = static_cast<size_t>(run_) * args_.rows + first_row_ + row;
      store8(out + at * out_stride + head_ * kDim + column, v, factor);
    }
  }

 private:
  __device__ __forceinline__ static void sync() {
    if constexpr (S::kBarrier == 0) {
      __syncthreads();
    } else {
      sync_warps<S::kBarrier, 32 * kWarps>();
    }
  }
  // This warp's sums, and of each row its largest score and its sum.
  __device__ __forceinline__ void leave(float* parts, float* stats) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = half * 8 + lane_ / 4;
      float* target = parts + (warp_ * kRows + row) * S::kOutPitch + lane_ % 4 * 2;
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        *reinterpret_cast<float2*>(target + n * 8) = {mixed_[n][2 * half], mixed_[n][2 * half + 1]};
      }
      if (lane_ % 4 == 0) {
        stats[warp_ * 2 * kRows + row] = top_[half];
        stats[warp_ * 2 * kRows + kRows + row] = sum_[half];
      }
    }
  }
  __device__ __forceinline__ uint64_t* pushed() const {
    return reinterpret_cast<uint64_t*>(reinterpret_cast<unsigned char*>(shared_) + S::kBarrierAt);
  }
  __device__ __forceinline__ float* biases(int index) const {
    float* first = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(shared_) + S::kBias);
    return first + (warp_ * S::kStages + index % S::kStages) * kKeys;
  }
  __device__ __forceinline__ bf16* tile(int index, int which) const {
    return shared_ + ((warp_ * S::kStages + index % S::kStages) * 2 + which) * S::kTile;
  }
  __device__ __forceinline__ int first_key(int index) const {
    if constexpr (S::kSplit > 1) {
      return ((index * S::kSplit + static_cast<int>(cluster_rank())) * kWarps + warp_) * kKeys;
    }
    return (index * kWarps + warp_) * kKeys;
  }
  __device__ __forceinline__ bool shown(int key) const {
    return key < length_ || key >= args_.prefix_rows;
  }

  // A tile of keys and of values, as one group of copies; an empty group unless `wanted`.
  // `late`: keys of it, a bit each, that are left out.
  __device__ __forceinline__ void fetch(int index, bool wanted, unsigned late = 0u) {
    if (wanted) {
      if constexpr (S::kBiased) {
        const int key = first_key(index) + lane_;
        if (lane_ < kKeys) {
          const int at = key < end_ ? run_ * args_.keys + key : 0;
          copy_async<4>(shared_address(biases(index) + lane_), args_.key_bias + at, key < end_);
        }
      }
#pragma unroll
      for (int i = lane_; i < kKeys * kColumns; i += 32) {
        const int row = i / kColumns, column = i % kColumns * 8, key = first_key(index) + row;
        if constexpr (S::kSplit > 1) {
          if (late >> row & 1u) continue;
        }
        const bool keep = key < end_ && shown(key);
        const size_t at = keep ? key : 0;
        copy16_async(shared_address(tile(index, 0) + row * S::kPitch + column),
                     k_ + at * args_.k_stride + column, keep);
        copy16_async(shared_address(tile(index, 1) + row * S::kPitch + column),
                     v_ + at * args_.v_stride + column, keep);
      }
    }
    copy_commit();
  }

  // Clears the values of a tile's keys that do not count; whether any does.
  __device__ __forceinline__ bool clear_hidden(int index) const {
    const float* bias = biases(index);
    const bool hidden = lane_ < kKeys && (first_key(index) + lane_ >= args_.keys ||
                                          bias[lane_] == -INFINITY);
    const unsigned votes = __ballot_sync(0xffffffffu, hidden);
    if (votes == 0xffffu) return false;
    if (votes != 0) {
      for (int i = lane_; i < kKeys * kColumns; i += 32) {
        const int row = i / kColumns;
        if (votes >> row & 1u) {
          *reinterpret_cast<uint4*>(tile(index, 1) + row * S::kPitch + i % kColumns * 8) = {};
        }
      }
      __syncwarp();
    }
    return true;
  }

  __device__ __forceinline__ void step(int index) {
    if constexpr (S::kBiased) {
      if (!clear_hidden(index)) return;
    }
    float s[2][4] = {};
    const bf16* keys = tile(index, 0) + (lane_ / 16 * 8 + lane_ % 8) * S::kPitch + lane_ / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      ldmatrix_x4(b, shared_address(keys + k * 16));
      mma_k16(s[0], queries_[k], b[0], b[1]);
      mma_k16(s[1], queries_[k], b[2], b[3]);
    }
    float top[2] = {top_[0], top_[1]};
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key(index) + n * 8 + lane_ % 4 * 2 + i % 2;
        const int row = first_row_ + i / 2 * 8 + lane_ / 4;
        const bool visible = key < args_.keys && shown(key) && (!args_.causal || key <= row);
        if constexpr (S::kBiased) {
          const float bias = biases(index)[n * 8 + lane_ % 4 * 2 + i % 2];
          const bool counts = visible && bias > -INFINITY;
          s[n][i] = counts ? fmaf(bias, kLog2E, s[n][i] * args_.scale_log2) : -INFINITY;
        } else {
          s[n][i] = visible ? s[n][i] * args_.scale_log2 : -INFINITY;
        }
        top[i / 2] = fmaxf(top[i / 2], s[n][i]);
      }
    }
    float shrink[2], base[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
      top[half] = fmaxf(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
      base[half] = top[half] == -INFINITY ? 0.0f : top[half];  // no key yet: all sums are zero
      shrink[half] = exp2_fast(top_[half] - base[half]);
      top_[half] = top[half];
      sum_[half] *= shrink[half];
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) mixed_[n][i] *= shrink[i / 2];
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_fast(s[n][i] - base[i / 2]);
        sum_[i / 2] += s[n][i];  // of this lane's keys
      }
    }
    const uint32_t a[4] = {pack2(s[0][0], s[0][1]), pack2(s[0][2], s[0][3]), pack2(s[1][0], s[1][1]),
                           pack2(s[1][2], s[1][3])};
    const bf16* values = tile(index, 1) + lane_ % 16 * S::kPitch + lane_ / 16 * 8;
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, shared_address(values + n * 8));
      mma_k16(mixed_[n], a, b[0], b[1]);
      mma_k16(mixed_[n + 1], a, b[2], b[3]);
    }
  }

  const Args args_;
  bf16* shared_;
  const bf16 *k_, *v_;
  int first_row_, head_, run_, lane_, warp_, length_, end_, own_;  // end_ of the keys, own_ tiles of a warp
  unsigned late_[S::kStages];  // with kSplit: keys of the first tiles that are still to come
  uint32_t queries_[kSteps][4];
  float mixed_[kColumns][4] = {};
  float top_[2] = {-INFINITY, -INFINITY}, sum_[2] = {};
};

}  // namespace heads
}  // namespace flashrt
