// attention_biased_split: as attention_biased (attention_biased_sm90.cu), of 128 rows a block (sm_90a)
// The two blocks of a cluster have the same rows and take blocks of 64 keys in turn; in each, both math
// warpgroups have 64 rows of their own and see all of its keys. In the end a block finishes the rows of one
// warpgroup: the other one's sums go to its neighbour.
// _ahead: asks for whole rows of keys and values in the second-level cache, ahead of their use
// needs d = 128; grid (2 ceil(rows_run / 128), H, runs), cluster 2, 384 threads
// bound: 4 M H N d flop, or the bytes of k and v
#include "attention_biased_sm90.cu"

namespace flashrt {
namespace biased_sm90 {

// Behind the ring: queries of the second warpgroup, sums and what they are scaled by of the neighbour.
constexpr int kSecondRows = (Alone::kBytes + 1023) / 1024 * 1024;
constexpr int kReceived = kSecondRows + Alone::kFrameBytes;
constexpr int kReceivedStats = kReceived + 128 * kDim / 2 * 4;
constexpr int kReceivedAll = kReceivedStats + 128 * 16;  // a barrier
constexpr int kSplitBiases = kReceivedAll + 16;
static_assert(kSplitBiases == 199696, "as the launcher has it");

#ifdef FLASHRT_SM90A

// This block's keys, for the 64 rows of a warpgroup at `queries`.
__device__ __forceinline__ void attend_split(const Ring<Alone>& ring, unsigned char* memory,
                                             State<Alone>& state, uint32_t queries, const float* biases,
                                             const int* hides, int rank, int blocks, float scale_log2,
                                             int group, int lane) {
  for (int turn = 0; 2 * turn + rank < blocks; ++turn) {
    const int block = 2 * turn + rank;
    float s[32];
    ring.wait_full(2 * turn);
    score<Alone>(s, queries, ring.frame(2 * turn));
    ring.release(2 * turn);
    const float2 shrink = exponentiate(s, state, biases + block * kKeys, scale_log2, lane);
    if (__any_sync(0xffffffffu, shrink.x != 1.0f || shrink.y != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) state.o[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
    }
    ring.wait_full(2 * turn + 1);
    const uint32_t values = ring.frame(2 * turn + 1);
    // Both warpgroups write the same zeros.
    if (hides[block]) clear_hidden(memory + (values - ring.memory), biases + block * kKeys, group);
    mix<Alone>(state.o, s, values);
    ring.release(2 * turn + 1);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 1);
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 2);
  }
}

__device__ __forceinline__ void send(unsigned char* memory, const State<Alone>& state, uint32_t to) {
  const uint32_t base = remote_address(memory, to), all = base + kReceivedAll, thread = threadIdx.x % 128;
#pragma unroll
  for (int i = 0; i < kDim / 8; ++i) {
    const float* o = state.o + 4 * i;
    push(base + kReceived + (i * 128 + thread) * 16, all, float4{o[0], o[1], o[2], o[3]});
  }
  push(base + kReceivedStats + thread * 16, all,
       float4{state.top[0], state.top[1], state.sum[0], state.sum[1]});
}

template <class Out>
__device__ __forceinline__ void finish_split(const unsigned char* memory, const State<Alone>& state,
                                             Out* out, int out_stride, float factor, int rows, int lane) {
  const int thread = threadIdx.x % 128;
  const float4 stats = reinterpret_cast<const float4*>(memory + kReceivedStats)[thread];
  const float tops[2] = {stats.x, stats.y}, sums[2] = {stats.z, stats.w};
  float mine[2], theirs[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float top = fmaxf(state.top[row], tops[row]);  // a key was seen
    mine[row] = exp2_flushed(state.top[row] - top);
    theirs[row] = exp2_flushed(tops[row] - top);
    const float sum = state.sum[row] * mine[row] + sums[row] * theirs[row];
    mine[row] /= sum;
    theirs[row] /= sum;
  }
  const float4* received = reinterpret_cast<const float4*>(memory + kReceived) + thread;
  const int at = thread / 32 * 16 + lane / 4;
  Out* target = out + static_cast<size_t>(at) * out_stride + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    const float4 other = received[n * 128];
    const float* o = state.o + 4 * n;
    if (at < rows) {
      store2(target + n * 8, o[0] * mine[0] + other.x * theirs[0], o[1] * mine[0] + other.y * theirs[0],
             factor);
    }
    if (at + 8 < rows) {
      store2(target + static_cast<size_t>(8) * out_stride + n * 8, o[2] * mine[1] + other.z * theirs[1],
             o[3] * mine[1] + other.w * theirs[1], factor);
    }
  }
}

template <bool kAsks, class Out>
__device__ __forceinline__ void run_split(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                          const float* key_bias, Out* out, const float* out_scale,
                                          int rows, int keys, int out_stride, float scale,
                                          const Rows& whole) {
  unsigned char* memory = dynamic_shared();
  const Ring<Alone> ring(shared_address(memory));
  pdl_trigger();
  if (threadIdx.x == 0) {
    prefetch_map(q);
    prefetch_map(k);
    prefetch_map(v);
    for (int frame = 0; frame < kFrames; ++frame) {
      barrier_init(ring.full + frame * 8, 1);
      barrier_init(ring.empty + frame * 8, 2);  // both warpgroups
    }
    barrier_init(ring.queries, 1);
    expect_bytes(reinterpret_cast<uint64_t*>(memory + kReceivedAll), 128 * (kDim * 2 + 16));
  }
  const float factor = store_factor<Out>(out_scale);
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  const int rank = static_cast<int>(cluster_rank()), blocks = (keys + kKeys - 1) / kKeys;
  const int first = blockIdx.x / 2 * 2 * kRows, column = blockIdx.y * kDim, run = blockIdx.z;
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      const int turns = (blocks - rank + 1) / 2;
      if constexpr (kAsks) {
        for (int pair = 0; pair < kAhead; ++pair) ask_pair(whole, pair, keys, run);
      }
      pdl_wait();
      barrier_expect(ring.queries, 2 * Alone::kFrameBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        copy_tile(q, ring.memory + i / 2 * kSecondRows + i % 2 * kChunkBytes, ring.queries,
                  column + i % 2 * 64, run * rows + first + i / 2 * kRows);
      }
      for (int turn = 0; turn < turns; ++turn) {
        const int row = run * keys + (2 * turn + rank) * kKeys;
        if constexpr (kAsks) ask_pair(whole, turn + kAhead, keys, run);
        ring.wait_empty(2 * turn);
        fetch<Alone>(k, ring.frame(2 * turn), ring.full_of(2 * turn), row, column);
        ring.wait_empty(2 * turn + 1);
        fetch<Alone>(v, ring.frame(2 * turn + 1), ring.full_of(2 * turn + 1), row, column);
      }
    }
  } else {
    take_registers<232>();
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    float* biases = reinterpret_cast<float*>(memory + kSplitBiases);
    int* hides = reinterpret_cast<int*>(biases + blocks * kKeys);
    pdl_wait();
    fetch_biases(biases, hides, key_bias + static_cast<size_t>(run) * keys, keys, blocks);
    State<Alone> state = {};
    state.top[0] = state.top[1] = -INFINITY;
    barrier_wait(ring.queries, 0);
    attend_split(ring, memory, state, ring.memory + group * kSecondRows, biases, hides, rank, blocks,
                 scale * 1.4426950408889634f, group, lane);
    if (group != rank) {
      send(memory, state, rank ^ 1);
    } else {
      wait_bytes(reinterpret_cast<uint64_t*>(memory + kReceivedAll));
      const int start = first + group * kRows;
      Out* target = out + (static_cast<size_t>(run) * rows + start) * out_stride + column;
      finish_split(memory, state, target, out_stride, factor, rows - start, lane);
    }
  }
}

#endif

}  // namespace biased_sm90
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_BIASED_SPLIT_SM90(name, kAsks, Out)                                                \
  extern "C" __global__ void __launch_bounds__(384, 1)                                             \
      name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,           \
           const __grid_constant__ CUtensorMap v, const float* key_bias, Out* out,                 \
           const float* out_scale, int rows, int keys, int out_stride, float scale,                \
           const flashrt::bf16* k_rows, const flashrt::bf16* v_rows, int k_stride,                 \
           int v_stride) {                                                                         \
    flashrt::biased_sm90::run_split<kAsks>(q, k, v, key_bias, out, out_scale, rows, keys,          \
                                           out_stride, scale,                                      \
                                           {k_rows, v_rows, k_stride, v_stride});                  \
  }

FLASHRT_BIASED_SPLIT_SM90(attention_biased_d128_split_bf16_sm90, false, flashrt::bf16)
FLASHRT_BIASED_SPLIT_SM90(attention_biased_d128_split_ahead_bf16_sm90, true, flashrt::bf16)
#endif
