// attention_shared_kv_pairs: as attention_shared_kv_sm90.cu, for so few query rows that a block for 64 of
// them would leave half of the multiprocessors without one (sm_90a)
// q [M H, d] bf16 (rows and heads as one list), k, v [N, d] bf16, out [M H, d] bf16, or E4M3 with a
// scale, all with contiguous heads. Keys from prefix_length[0] on are hidden; their values are zeroed
// in shared memory before they are used, so what they hold cannot leak through 0 * x.
// q, k and v come as tile maps of 64 x 64 (q) and 48 x 64 values (128-byte swizzle).
//
// The two blocks of a cluster own 64 query rows and take runs of 48 keys in turn, each with one warpgroup
// of warps. They join at the end: each pushes the half of the columns that the
// other finishes. Two blocks fit on a multiprocessor.
// float32 scores, online softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 256; grid 2 ceil(M H / 64), clusters of 2, 128 threads
// bound: 4 M H N d flop.   source of the online softmax: arXiv 2205.14135
#include "../common/activation.cuh"
#include "../common/cluster.cuh"
#include "../common/memory.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/tile_copy.cuh"
#include "../common/vector.cuh"
#include "../common/wgmma.cuh"

namespace flashrt {
namespace shared_kv_pairs {

constexpr int kDim = 256, kRows = 64, kKeys = 48, kFrames = 3;
constexpr int kHalf = kDim / 2;                       // columns that a block finishes
constexpr int kQueryChunk = kRows * 128, kChunk = kKeys * 128;  // rows of 64 values
constexpr int kQueryBytes = kDim / 64 * kQueryChunk, kFrameBytes = kDim / 64 * kChunk;
// Behind the last run of keys the frames hold what the other block has pushed, and results on their way out.
constexpr int kPushed = kHalf * kRows * 4, kFactors = 4 * 8 * 16;
constexpr int kReceived = kQueryBytes, kReceivedFactors = kReceived + kPushed;
constexpr int kLeaving = kReceivedFactors + kFactors;
constexpr int kBarriers = kQueryBytes + kFrames * kFrameBytes;
constexpr int kBytes = kBarriers + (kFrames + 2) * 8;
static_assert(kBytes == 106536, "as the launcher has it");
constexpr float kSlack = 8.0f;  // of base-2 exponents

#ifdef FLASHRT_SM90A

// Of this block's runs, keys have the even indices and values the odd ones.
struct Ring {
  uint32_t memory;
  const CUtensorMap &k, &v;
  int rank, runs;

  __device__ __forceinline__ uint32_t frame(int index) const {
    return memory + kQueryBytes + index % kFrames * kFrameBytes;
  }
  __device__ __forceinline__ uint32_t full(int index) const {
    return memory + kBarriers + index % kFrames * 8;
  }
  __device__ __forceinline__ uint32_t queries() const { return memory + kBarriers + kFrames * 8; }
  __device__ __forceinline__ void wait_full(int index) const {
    barrier_wait(full(index), index / kFrames % 2);
  }
  // By one thread, once nobody reads what is in the frame.
  __device__ __forceinline__ void fetch(int index) const {
    const int run = index / 2 * 2 + rank;
    if (run >= runs) return;
    barrier_expect(full(index), kFrameBytes);
#pragma unroll
    for (int chunk = 0; chunk < kDim / 64; ++chunk) {
      copy_tile(index % 2 == 0 ? k : v, frame(index) + chunk * kChunk, full(index), chunk * 64,
                run * kKeys);
    }
  }
  // All have read the frame of `index`: its place is the next but two's.
  __device__ __forceinline__ void release(int index) const {
    __syncthreads();
    if (threadIdx.x == 0) fetch(index + kFrames);
  }
};

struct State {
  float o[kDim / 2];  // of this block's keys, not yet divided by sum
  float top[2], sum[2];
};

// Scores -> probabilities in `s`, relative to a base that follows the maximum only when that has grown
// by more than 2^8, so that most runs rescale nothing; returns how much old sums and outputs shrink.
__device__ __forceinline__ float2 exponentiate(float (&s)[kKeys / 2], State& state, float scale_log2,
                                               int visible, int lane) {
  float top[2] = {state.top[0], state.top[1]};
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
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
    shrink[row] = exp2_flushed(state.top[row] - top[row]);  // a run has at least one visible key
    state.top[row] = top[row];
    state.sum[row] *= shrink[row];
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    s[i] = exp2_flushed(s[i] - top[i / 2 % 2]);
    state.sum[i / 2 % 2] += s[i];
  }
  return make_float2(shrink[0], shrink[1]);
}

// Zeroes the rows of a frame from `visible` on, for the tensor cores to read.
__device__ __forceinline__ void clear_hidden(uint32_t frame, int visible) {
  const int vectors = (kKeys - visible) * 8;  // of 16 bytes, in each chunk
  for (int i = threadIdx.x; i < vectors * (kDim / 64); i += 128) {
    clear_shared16(frame + i / vectors * kChunk + visible * 128 + i % vectors * 16);
  }
  publish_shared();
  __syncthreads();
}

__device__ __forceinline__ void attend(const Ring& ring, State& state, int length, float scale_log2,
                                       int lane) {
  for (int run = ring.rank, index = 0; run < ring.runs; run += 2, index += 2) {
    const int visible = min(kKeys, length - run * kKeys);
    float s[kKeys / 2];
    ring.wait_full(index);
    const uint32_t keys = ring.frame(index);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      Wgmma<kKeys>::run(s, wgmma_step(wgmma_tile(ring.memory + k / 4 * kQueryChunk), k % 4),
                        wgmma_step(wgmma_tile(keys + k / 4 * kChunk), k % 4), k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    ring.release(index);
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
    ring.wait_full(index + 1);
    const uint32_t values = ring.frame(index + 1);
    if (visible < kKeys) clear_hidden(values, visible);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      WgmmaRegisters<kDim>::run<1>(state.o, p[k], wgmma_columns(values + k * 2048, kChunk), 1);
    }
    wgmma_commit();
    wgmma_wait<0>();
    ring.release(index + 1);
  }
}

// To the other block: the columns that it finishes, and what they were scaled by.
template <int kRank>
__device__ __forceinline__ void leave(unsigned char* memory, uint32_t pushed, State& state, int lane) {
  constexpr int kFirst = (1 - kRank) * kHalf / 2;
  const uint32_t base = remote_address(memory, 1 - kRank);
  const uint32_t barrier = base + pushed;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 1);
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 2);
  }
  const int thread = threadIdx.x;
  push(base + kReceivedFactors + thread / 4 * 16, barrier,
       float4{state.top[0], state.top[1], state.sum[0], state.sum[1]}, lane % 4 == 0);
#pragma unroll
  for (int n = 0; n < kHalf / 8; ++n) {
    const float* o = state.o + kFirst + 4 * n;
    push(base + kReceived + (n * 128 + thread) * 16, barrier, float4{o[0], o[1], o[2], o[3]});
  }
}

// This block's columns. A warp's results pass through shared memory, so that it writes whole runs of a row.
template <int kRank, class Out>
__device__ __forceinline__ void finish(unsigned char* memory, const State& state, Out* out, float factor,
                                       int first_row, int rows, int lane) {
  constexpr int kFirst = kRank * kHalf / 2, kRun = kHalf * sizeof(Out), kPitch = kRun + 16;
  static_assert(kLeaving + 4 * 16 * kPitch <= kBarriers, "as much room as the frames had");
  const int thread = threadIdx.x, warp = thread / 32;
  const float4 their = *reinterpret_cast<const float4*>(memory + kReceivedFactors + thread / 4 * 16);
  const float their_top[2] = {their.x, their.y}, their_sum[2] = {their.z, their.w};
  float mine[2], theirs[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float top = fmaxf(state.top[row], their_top[row]);  // block 0 has seen a key
    mine[row] = exp2_flushed(state.top[row] - top);
    theirs[row] = exp2_flushed(their_top[row] - top);
    const float sum = state.sum[row] * mine[row] + their_sum[row] * theirs[row];
    mine[row] /= sum;
    theirs[row] /= sum;
  }
  unsigned char* leaving = memory + kLeaving + warp * 16 * kPitch;
#pragma unroll
  for (int n = 0; n < kHalf / 8; ++n) {
    const float4 other = reinterpret_cast<const float4*>(memory + kReceived)[n * 128 + thread];
    const float* o = state.o + kFirst + 4 * n;
    Out* low = reinterpret_cast<Out*>(leaving + lane / 4 * kPitch) + n * 8 + lane % 4 * 2;
    Out* high = reinterpret_cast<Out*>(leaving + (lane / 4 + 8) * kPitch) + n * 8 + lane % 4 * 2;
    store2(low, o[0] * mine[0] + other.x * theirs[0], o[1] * mine[0] + other.y * theirs[0], factor);
    store2(high, o[2] * mine[1] + other.z * theirs[1], o[3] * mine[1] + other.w * theirs[1], factor);
  }
  __syncwarp();
  constexpr int kVectors = kRun / 16;
#pragma unroll
  for (int i = lane; i < 16 * kVectors; i += 32) {
    const int row = i / kVectors, at = first_row + warp * 16 + row;
    if (at >= rows) break;
    unsigned char* target = reinterpret_cast<unsigned char*>(out + static_cast<size_t>(at) * kDim + kRank * kHalf);
    *reinterpret_cast<uint4*>(target + i % kVectors * 16) =
        *reinterpret_cast<const uint4*>(leaving + row * kPitch + i % kVectors * 16);
  }
}

template <class Out>
__device__ __forceinline__ void run(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                    Out* out, const float* out_scale, const int* prefix_length,
                                    int rows, int keys, float scale) {
  extern __shared__ __align__(1024) unsigned char shared_kv_pairs_memory[];
  unsigned char* memory = shared_kv_pairs_memory;
  Ring ring = {shared_address(memory), k, v, static_cast<int>(cluster_rank()), 0};
  constexpr uint32_t kCame = kBarriers + (kFrames + 1) * 8;
  const int rank = ring.rank, tile = blockIdx.x / 2;
  if (threadIdx.x == 0) {
    prefetch_map(q);
    prefetch_map(k);
    prefetch_map(v);
    for (int frame = 0; frame < kFrames; ++frame) barrier_init(ring.full(frame), 1);
    barrier_init(ring.queries(), 1);
    expect_bytes(reinterpret_cast<uint64_t*>(memory + kCame), kPushed + kFactors);
    barrier_init_fence();
  }
  __syncthreads();
  pdl_wait();
  const int length = prefix_length ? min(*prefix_length, keys) : keys;
  ring.runs = (length + kKeys - 1) / kKeys;
  if (threadIdx.x == 0) {
    barrier_expect(ring.queries(), kQueryBytes);
#pragma unroll
    for (int chunk = 0; chunk < kDim / 64; ++chunk) {
      copy_tile(q, ring.memory + chunk * kQueryChunk, ring.queries(), chunk * 64, tile * kRows);
    }
    for (int index = 0; index < kFrames; ++index) ring.fetch(index);
  }
  const int lane = threadIdx.x % 32;
  State state = {};
  state.top[0] = state.top[1] = -INFINITY;
  barrier_wait(ring.queries(), 0);
  attend(ring, state, length, scale * 1.4426950408889634f, lane);
  // Both have read their last frames, which what is pushed may now take the place of.
  cluster_arrive();
  cluster_wait();
  const float factor = store_factor<Out>(out_scale);
  if (rank == 0) {
    leave<0>(memory, kCame, state, lane);
    barrier_wait(ring.memory + kCame, 0);
    finish<0>(memory, state, out, factor, tile * kRows, rows, lane);
  } else {
    leave<1>(memory, kCame, state, lane);
    barrier_wait(ring.memory + kCame, 0);
    finish<1>(memory, state, out, factor, tile * kRows, rows, lane);
  }
}

#endif

}  // namespace shared_kv_pairs
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_SHARED_KV_PAIRS(name, Out)                                                         \
  extern "C" __global__ void __launch_bounds__(128, 2)                                             \
      name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,           \
           const __grid_constant__ CUtensorMap v, Out* out, const float* out_scale,                \
           const int* prefix_length, int rows, int keys, float scale) {                            \
    flashrt::pdl_trigger();                                                                        \
    flashrt::shared_kv_pairs::run(q, k, v, out, out_scale, prefix_length, rows, keys, scale);      \
  }

FLASHRT_SHARED_KV_PAIRS(attention_shared_kv_d256_bf16_pairs_sm90, flashrt::bf16)
FLASHRT_SHARED_KV_PAIRS(attention_shared_kv_d256_fp8_pairs_sm90, flashrt::e4m3)
#endif
