// warpgroup_attention_sm90: what attention of 64 query rows on warpgroup products (sm_90a) has in common.
// One warp fetches; two math warpgroups take blocks of 64 keys in turn, so that the softmax of one runs
// under the products of the other, and join at the end.
//
// With kShare = 2 the two blocks of a cluster have other rows of the same keys: each fetches half of every
// frame of keys or values and sends it to both. A frame is empty when both have read it.
#pragma once

#include <cstdint>

#include "activation.cuh"
#include "cluster.cuh"
#include "quantise.cuh"
#include "stream.cuh"
#include "tile_copy.cuh"
#include "vector.cuh"
#include "warps.cuh"
#include "wgmma.cuh"

namespace flashrt {
namespace warpgroup_attention {

constexpr int kRows = 64, kKeys = 64, kThreads = 384;
constexpr int kChunkBytes = 64 * 128;  // 64 rows of 64 values
constexpr float kSlack = 8.0f;         // of base-2 exponents

// Heads of kDim values, kFrames frames of 64 keys or values behind the one of the queries.
template <int kDim_, int kFrames_, int kShare_ = 1>
struct Shape {
  static constexpr int kDim = kDim_, kFrames = kFrames_, kShare = kShare_;
  static_assert(kDim / 64 % kShare == 0, "whole chunks a block");
  static constexpr int kFrameBytes = kDim / 64 * kChunkBytes;  // 64 queries, keys or values
  static constexpr int kBarriers = (kFrames + 1) * kFrameBytes;
  static constexpr int kBytes = kBarriers + (2 * kFrames + 2) * 8;
};

#ifdef FLASHRT_SM90A

// Frames hold K0 K1 V0 V1 K2 K3 V2 V3 ..: blocks 2 i and 2 i + 1 belong to warpgroups 0 and 1.
__device__ __forceinline__ int key_frame(int block) { return block / 2 * 4 + block % 2; }
__device__ __forceinline__ int value_frame(int block) { return key_frame(block) + 2; }

template <class S>
struct Ring {
  uint32_t memory, full, empty, queries, joint;

  __device__ __forceinline__ explicit Ring(uint32_t base)
      : memory(base),
        full(base + S::kBarriers),
        empty(base + S::kBarriers + S::kFrames * 8),
        queries(base + S::kBarriers + 2 * S::kFrames * 8),
        joint(base + S::kBarriers + (2 * S::kFrames + 1) * 8) {}

  // By one thread, before all meet.
  __device__ __forceinline__ void init() const {
    for (int frame = 0; frame < S::kFrames; ++frame) {
      barrier_init(full + frame * 8, 1);
      barrier_init(empty + frame * 8, S::kShare);
    }
    barrier_init(queries, 1);
    barrier_init(joint, 256);
    barrier_init_fence();
  }

  __device__ __forceinline__ uint32_t frame(int index) const {
    return memory + (1 + index % S::kFrames) * S::kFrameBytes;
  }
  __device__ __forceinline__ uint32_t full_of(int index) const { return full + index % S::kFrames * 8; }
  __device__ __forceinline__ void wait_full(int index) const {
    barrier_wait(full_of(index), index / S::kFrames % 2);
  }
  __device__ __forceinline__ void wait_empty(int index) const {
    barrier_wait(empty + index % S::kFrames * 8, index / S::kFrames % 2 ^ 1);
  }
  __device__ __forceinline__ void release(int index) const {
    if (threadIdx.x % 128 != 0) return;
    const uint32_t barrier = empty + index % S::kFrames * 8;
    barrier_arrive(barrier);
    if constexpr (S::kShare > 1) barrier_arrive_at(barrier, cluster_rank() ^ 1u);
  }
  // Both math warpgroups, for the time-th time. Not a named barrier: racecheck loses track of those.
  __device__ __forceinline__ void meet(int time) const {
    barrier_arrive(joint);
    barrier_wait(joint, time % 2);
  }
};

template <class S>
__device__ __forceinline__ void fetch(const CUtensorMap& map, uint32_t target, uint32_t barrier, int row,
                                      int column) {
  barrier_expect(barrier, S::kFrameBytes);
#pragma unroll
  for (int chunk = 0; chunk < S::kDim / 64; ++chunk) {
    copy_tile(map, target + chunk * kChunkBytes, barrier, column + chunk * 64, row);
  }
}

// The same of keys or values, into all blocks that share them.
template <class S>
__device__ __forceinline__ void fetch_shared(const CUtensorMap& map, uint32_t target, uint32_t barrier,
                                             int row, int column) {
  if constexpr (S::kShare == 1) {
    fetch<S>(map, target, barrier, row, column);
  } else {
    constexpr int kOwn = S::kDim / 64 / S::kShare;
    barrier_expect(barrier, S::kFrameBytes);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const int chunk = static_cast<int>(cluster_rank()) * kOwn + i;
      copy_tile_to(map, target + chunk * kChunkBytes, barrier, column + chunk * 64, row,
                   (1 << S::kShare) - 1);
    }
  }
}

// Blocks of keys and values of a head, by one thread: from row `first_row` on, at their columns.
template <class S>
__device__ __forceinline__ void produce(const CUtensorMap& k, const CUtensorMap& v, const Ring<S>& ring,
                                        int blocks, int first_row, int column) {
  // An odd number of blocks leaves the last pair's second half out; its frames stay unused.
  for (int block = 0; block < blocks; block += 2) {
    const int pair = min(2, blocks - block);
    for (int i = 0; i < pair; ++i) {
      const int index = key_frame(block + i);
      ring.wait_empty(index);
      fetch_shared<S>(k, ring.frame(index), ring.full_of(index), first_row + (block + i) * kKeys, column);
    }
    for (int i = 0; i < pair; ++i) {
      const int index = value_frame(block + i);
      ring.wait_empty(index);
      fetch_shared<S>(v, ring.frame(index), ring.full_of(index), first_row + (block + i) * kKeys, column);
    }
  }
}

template <class S>
struct State {
  float o[S::kDim / 2];  // of this warpgroup's keys, not yet divided by sum
  float top[2], sum[2];
};

// Scores q k^T of a block.
template <class S>
__device__ __forceinline__ void score(float (&s)[kKeys / 2], uint32_t queries, uint32_t keys) {
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < S::kDim / 16; ++k) {
    const uint32_t chunk = k / 4 * kChunkBytes;
    Wgmma<kKeys>::run(s, wgmma_step(wgmma_tile(queries + chunk), k % 4),
                      wgmma_step(wgmma_tile(keys + chunk), k % 4), k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// o += p v.
template <class S>
__device__ __forceinline__ void mix(float (&o)[S::kDim / 2], const float (&s)[kKeys / 2], uint32_t values) {
  uint32_t p[kKeys / 16][4];
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    WgmmaRegisters<S::kDim>::template run<1>(o, p[k], wgmma_columns(values + k * 2048, kChunkBytes), 1);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// Where a warpgroup leaves the columns that the other one finishes, and what it scaled them by.
template <class S>
struct Join {
  float o[2][S::kDim / 4][128];  // warpgroup, value, thread
  float top[2][2][128], sum[2][2][128];
};

template <int kGroup, class S>
__device__ __forceinline__ void leave(Join<S>& other, State<S>& state) {
  constexpr int kHalf = S::kDim / 4, kOther = 1 - kGroup;
  const int thread = threadIdx.x % 128;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 1);
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 2);
    other.top[kGroup][row][thread] = state.top[row];
    other.sum[kGroup][row][thread] = state.sum[row];
  }
#pragma unroll
  for (int i = 0; i < kHalf; ++i) other.o[kGroup][i][thread] = state.o[kOther * kHalf + i];
}

// Words of four runs of eight columns, two columns of each a lane: so that each lane of four has a run.
__device__ __forceinline__ void gather(uint32_t (&word)[4], int lane) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool set = lane & bit;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & bit) continue;
      const uint32_t other = __shfl_xor_sync(0xffffffffu, set ? word[low] : word[low + bit], bit);
      word[low] = set ? other : word[low];
      word[low + bit] = set ? word[low + bit] : other;
    }
  }
}

// Half of the columns of the rows that this thread has: `out` is where the block's first row goes, of
// which `rows` are to be written.
template <int kGroup, class S, class Out>
__device__ __forceinline__ void finish(const Join<S>& other, const State<S>& state, Out* out,
                                       int out_stride, float factor, int rows, int lane) {
  constexpr int kHalf = S::kDim / 4, kOther = 1 - kGroup;
  const int thread = threadIdx.x % 128;
  float mine[2], theirs[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float their_top = other.top[kOther][row][thread];
    const float top = fmaxf(state.top[row], their_top);  // a key was seen
    mine[row] = exp2_flushed(state.top[row] - top);
    theirs[row] = exp2_flushed(their_top - top);
    const float sum = state.sum[row] * mine[row] + other.sum[kOther][row][thread] * theirs[row];
    mine[row] /= sum;
    theirs[row] /= sum;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int at = thread / 32 * 16 + lane / 4 + row * 8;
    Out* target = out + static_cast<size_t>(at) * out_stride + kGroup * 2 * kHalf + lane % 4 * 8;
#pragma unroll
    for (int n = 0; n < kHalf / 4; n += 4) {
      uint32_t word[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int own = 4 * (n + j) + 2 * row + i;
          value[i] = state.o[kGroup * kHalf + own] * mine[row] + other.o[kOther][own][thread] * theirs[row];
        }
        word[j] = word2<Out>(value[0], value[1], factor);
      }
      gather(word, lane);
      if (at < rows) store_words(target + n * 8, word);
    }
  }
}

// What both math warpgroups do behind their last block.
template <class S, class Out>
__device__ __forceinline__ void join(const Ring<S>& ring, unsigned char* frames, State<S>& state, Out* out,
                                     int out_stride, float factor, int rows) {
  static_assert(sizeof(Join<S>) <= S::kFrames * S::kFrameBytes, "the join reuses the frames");
  const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
  // Every frame has been consumed once both warpgroups are here; the join may write over them.
  ring.meet(0);
  Join<S>& other = *reinterpret_cast<Join<S>*>(frames);
  if (group == 0) {
    leave<0>(other, state);
  } else {
    leave<1>(other, state);
  }
  ring.meet(1);
  if (group == 0) {
    finish<0>(other, state, out, out_stride, factor, rows, lane);
  } else {
    finish<1>(other, state, out, out_stride, factor, rows, lane);
  }
}

#endif

}  // namespace warpgroup_attention
}  // namespace flashrt
