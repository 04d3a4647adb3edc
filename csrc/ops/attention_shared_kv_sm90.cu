// attention_shared_kv: softmax(scale q k^T) v where all query heads share one key and value head (sm_90a)
// q [M H, d] bf16 (rows and heads as one list), k, v [N, d] bf16, out [M H, d] bf16, or E4M3 with a
// scale, all with contiguous heads. Keys from prefix_length[0] on are hidden; their values are zeroed
// in shared memory before they are used, so what they hold cannot leak through 0 * x.
// q, k and v come as tile maps of 64 x 64 values (128-byte swizzle).
//
// A block owns 64 query rows. One warp fetches; two math warpgroups take blocks of 64 keys in turn,
// so that the softmax of one runs under the products of the other, and join at the end.
// float32 scores, online softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 256; grid ceil(M H / 64), 384 threads
// bound: 4 M H N d flop.   source of the online softmax: arXiv 2205.14135
#include "../common/activation.cuh"
#include "../common/cluster.cuh"
#include "../common/memory.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/tile_copy.cuh"
#include "../common/vector.cuh"
#include "../common/warps.cuh"
#include "../common/wgmma.cuh"

namespace flashrt {
namespace shared_kv_sm90 {

constexpr int kDim = 256, kRows = 64, kKeys = 64, kThreads = 384, kFrames = 6;
constexpr int kChunkBytes = 64 * 128;              // 64 rows of 64 values
constexpr int kFrameBytes = kDim / 64 * kChunkBytes;  // 64 queries, keys or values
constexpr int kBarriers = (kFrames + 1) * kFrameBytes;
constexpr int kBytes = kBarriers + (2 * kFrames + 2) * 8;
constexpr float kSlack = 8.0f;  // of base-2 exponents

#ifdef FLASHRT_SM90A

// Frames hold K0 K1 V0 V1 K2 K3 V2 V3 ..: blocks 2 i and 2 i + 1 belong to warpgroups 0 and 1.
__device__ __forceinline__ int key_frame(int block) { return block / 2 * 4 + block % 2; }
__device__ __forceinline__ int value_frame(int block) { return key_frame(block) + 2; }

struct Ring {
  uint32_t memory, full, empty, queries, joint;

  __device__ __forceinline__ uint32_t frame(int index) const {
    return memory + (1 + index % kFrames) * kFrameBytes;
  }
  __device__ __forceinline__ void wait_full(int index) const {
    barrier_wait(full + index % kFrames * 8, index / kFrames % 2);
  }
  __device__ __forceinline__ void wait_empty(int index) const {
    barrier_wait(empty + index % kFrames * 8, index / kFrames % 2 ^ 1);
  }
  __device__ __forceinline__ void release(int index) const {
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + index % kFrames * 8);
  }
  // Both math warpgroups, for the time-th time. Not a named barrier: racecheck loses track of those.
  __device__ __forceinline__ void meet(int time) const {
    barrier_arrive(joint);
    barrier_wait(joint, time % 2);
  }
};

__device__ __forceinline__ void fetch(const CUtensorMap& map, uint32_t target, uint32_t barrier,
                                      int row) {
  barrier_expect(barrier, kFrameBytes);
#pragma unroll
  for (int chunk = 0; chunk < kDim / 64; ++chunk) {
    copy_tile(map, target + chunk * kChunkBytes, barrier, chunk * 64, row);
  }
}

__device__ __forceinline__ void produce(const CUtensorMap& q, const CUtensorMap& k,
                                        const CUtensorMap& v, const Ring& ring, int blocks) {
  fetch(q, ring.memory, ring.queries, blockIdx.x * kRows);
  // An odd number of blocks leaves the last pair's second half out; its frames stay unused.
  for (int block = 0; block < blocks; block += 2) {
    const int pair = min(2, blocks - block);
    for (int i = 0; i < pair; ++i) {
      const int index = key_frame(block + i);
      ring.wait_empty(index);
      fetch(k, ring.frame(index), ring.full + index % kFrames * 8, (block + i) * kKeys);
    }
    for (int i = 0; i < pair; ++i) {
      const int index = value_frame(block + i);
      ring.wait_empty(index);
      fetch(v, ring.frame(index), ring.full + index % kFrames * 8, (block + i) * kKeys);
    }
  }
}

struct State {
  float o[kDim / 2];  // of this warpgroup's keys, not yet divided by sum
  float top[2], sum[2];
};

// Scores -> probabilities in `s`, relative to a base that follows the maximum only when that has grown
// by more than 2^8, so that most blocks rescale nothing; returns how much old sums and outputs shrink.
__device__ __forceinline__ float2 exponentiate(float (&s)[32], State& state, float scale_log2,
                                               int visible, int lane) {
  float top[2] = {state.top[0], state.top[1]};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int key = i / 4 * 8 + lane % 4 * 2 + i % 2;
    s[i] = key < visible ? s[i] * scale_log2 : -INFINITY;
    top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
  }
  float shrink[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2));
    if (top[row] <= state.top[row] + kSlack) top[row] = state.top[row];
    shrink[row] = exp2_flushed(state.top[row] - top[row]);  // a block has at least one visible key
    state.top[row] = top[row];
    state.sum[row] *= shrink[row];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    s[i] = exp2_flushed(s[i] - top[i / 2 % 2]);
    state.sum[i / 2 % 2] += s[i];
  }
  return make_float2(shrink[0], shrink[1]);
}

// Zeroes the rows of a frame from `visible` on, for the tensor cores to read.
__device__ __forceinline__ void clear_hidden(uint32_t frame, int visible) {
  const int vectors = (kKeys - visible) * 8;  // of 16 bytes, in each chunk
  for (int i = threadIdx.x % 128; i < vectors * (kDim / 64); i += 128) {
    const uint32_t at = frame + i / vectors * kChunkBytes + visible * 128 + i % vectors * 16;
    clear_shared16(at);
  }
  publish_shared();
}

__device__ __forceinline__ void attend(const Ring& ring, State& state, int blocks, int length,
                                       float scale_log2, int group, int lane) {
  for (int block = group; block < blocks; block += 2) {
    const int visible = min(kKeys, length - block * kKeys);
    float s[32];
    ring.wait_full(key_frame(block));
    const uint32_t keys = ring.frame(key_frame(block));
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const uint32_t chunk = k / 4 * kChunkBytes;
      Wgmma<64>::run(s, wgmma_step(wgmma_tile(ring.memory + chunk), k % 4),
                     wgmma_step(wgmma_tile(keys + chunk), k % 4), k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    ring.release(key_frame(block));
    const float2 shrink = exponentiate(s, state, scale_log2, visible, lane);
    if (__any_sync(0xffffffffu, shrink.x != 1.0f || shrink.y != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) state.o[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
    }
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = pack2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
    }
    ring.wait_full(value_frame(block));
    const uint32_t values = ring.frame(value_frame(block));
    if (visible < kKeys) {
      clear_hidden(values, visible);
      sync_warps<128>(1 + group);
    }
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      WgmmaRegisters<256>::run<1>(state.o, p[k], wgmma_columns(values + k * 2048, kChunkBytes), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    ring.release(value_frame(block));
  }
}

// Where a warpgroup leaves the columns that the other one finishes, and what it scaled them by.
struct Join {
  float o[2][kDim / 4][128];  // warpgroup, value, thread
  float top[2][2][128], sum[2][2][128];
};
static_assert(sizeof(Join) <= kFrames * kFrameBytes, "the join reuses the frames");

template <int kGroup>
__device__ __forceinline__ void leave(Join& other, State& state) {
  constexpr int kHalf = kDim / 4, kOther = 1 - kGroup;
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

template <int kGroup, class Out>
__device__ __forceinline__ void finish(const Join& other, const State& state, Out* out, float factor,
                                       int rows, int lane) {
  constexpr int kHalf = kDim / 4, kOther = 1 - kGroup;
  const int thread = threadIdx.x % 128;
  float mine[2], theirs[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float their_top = other.top[kOther][row][thread];
    const float top = fmaxf(state.top[row], their_top);  // warpgroup 0 has seen a key
    mine[row] = exp2_flushed(state.top[row] - top);
    theirs[row] = exp2_flushed(their_top - top);
    const float sum = state.sum[row] * mine[row] + other.sum[kOther][row][thread] * theirs[row];
    mine[row] /= sum;
    theirs[row] /= sum;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int at = blockIdx.x * kRows + thread / 32 * 16 + lane / 4 + row * 8;
    if (at >= rows) continue;
    Out* target = out + static_cast<size_t>(at) * kDim + kGroup * 2 * kHalf + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kHalf / 4; ++n) {
      float value[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        value[i] = state.o[kGroup * kHalf + 4 * n + 2 * row + i] * mine[row] +
                   other.o[kOther][4 * n + 2 * row + i][thread] * theirs[row];
      }
      store2(target + n * 8, value[0], value[1], factor);
    }
  }
}

template <class Out>
__device__ __forceinline__ void run(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                    Out* out, const float* out_scale, const int* prefix_length,
                                    int rows, int keys, float scale) {
  extern __shared__ __align__(1024) unsigned char shared_kv_memory[];
  const Ring ring = {shared_address(shared_kv_memory), shared_address(shared_kv_memory) + kBarriers,
                     shared_address(shared_kv_memory) + kBarriers + kFrames * 8,
                     shared_address(shared_kv_memory) + kBarriers + 2 * kFrames * 8,
                     shared_address(shared_kv_memory) + kBarriers + (2 * kFrames + 1) * 8};
  if (threadIdx.x == 0) {
    prefetch_map(q);
    prefetch_map(k);
    prefetch_map(v);
    for (int frame = 0; frame < kFrames; ++frame) {
      barrier_init(ring.full + frame * 8, 1);
      barrier_init(ring.empty + frame * 8, 1);
    }
    barrier_init(ring.queries, 1);
    barrier_init(ring.joint, 256);
    barrier_init_fence();
  }
  __syncthreads();
  pdl_wait();
  const int length = prefix_length ? min(*prefix_length, keys) : keys;
  const int blocks = (length + kKeys - 1) / kKeys;
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) produce(q, k, v, ring, blocks);
  } else {
    take_registers<232>();
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    State state = {};
    state.top[0] = state.top[1] = -INFINITY;
    barrier_wait(ring.queries, 0);
    attend(ring, state, blocks, length, scale * 1.4426950408889634f, group, lane);
    // Every frame has been consumed once both warpgroups are here; the join may write over them.
    ring.meet(0);
    Join& other = *reinterpret_cast<Join*>(shared_kv_memory + kFrameBytes);
    const float factor = store_factor<Out>(out_scale);
    if (group == 0) {
      leave<0>(other, state);
    } else {
      leave<1>(other, state);
    }
    ring.meet(1);
    if (group == 0) {
      finish<0>(other, state, out, factor, rows, lane);
    } else {
      finish<1>(other, state, out, factor, rows, lane);
    }
  }
}

#endif

}  // namespace shared_kv_sm90
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_SHARED_KV_SM90(name, Out)                                                          \
  extern "C" __global__ void __launch_bounds__(384, 1)                                             \
      name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,           \
           const __grid_constant__ CUtensorMap v, Out* out, const float* out_scale,                \
           const int* prefix_length, int rows, int keys, float scale) {                            \
    flashrt::pdl_trigger();                                                                        \
    flashrt::shared_kv_sm90::run(q, k, v, out, out_scale, prefix_length, rows, keys, scale);       \
  }

FLASHRT_SHARED_KV_SM90(attention_shared_kv_d256_bf16_sm90, flashrt::bf16)
FLASHRT_SHARED_KV_SM90(attention_shared_kv_d256_fp8_sm90, flashrt::e4m3)
#endif
