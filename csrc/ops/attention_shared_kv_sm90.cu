// attention_shared_kv: softmax(scale q k^T) v where all query heads share one key and value head (sm_90a)
// q [M H, d] bf16 (rows and heads as one list), k, v [N, d] bf16, out [M H, d] bf16, or E4M3 with a
// scale, all with contiguous heads. Keys from prefix_length[0] on are hidden; their values are zeroed
// in shared memory before they are used, so what they hold cannot leak through 0 * x.
// q, k and v come as tile maps of 64 x 64 values (128-byte swizzle).
//
// A block owns 64 query rows (warpgroup_attention_sm90.cuh).
// float32 scores, online softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 256; grid ceil(M H / 64), 384 threads
// bound: 4 M H N d flop.   source of the online softmax: arXiv 2205.14135
#include "../common/memory.cuh"
#include "../common/pdl.cuh"
#include "../common/warpgroup_attention_sm90.cuh"

namespace flashrt {
namespace shared_kv_sm90 {

using namespace warpgroup_attention;

using S = Shape<256, 6>;
static_assert(S::kBytes == 229488, "as the launcher has it");

#ifdef FLASHRT_SM90A

// Scores -> probabilities in `s`, relative to a base that follows the maximum only when that has grown
// by more than 2^8, so that most blocks rescale nothing. The first `visible` keys count, at least one.
__device__ __forceinline__ void exponentiate(float (&s)[kKeys / 2], State<S>& state, float scale_log2,
                                             int visible, int lane) {
  if (visible < kKeys) {
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) {
      if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= visible) s[i] = -INFINITY;
    }
  }
  float top[2] = {fmaxf(s[0], s[1]), fmaxf(s[2], s[3])}, next[2] = {fmaxf(s[4], s[5]), fmaxf(s[6], s[7])};
#pragma unroll
  for (int i = 8; i < kKeys / 2; ++i) {
    float& which = i / 4 % 2 == 0 ? top[i / 2 % 2] : next[i / 2 % 2];
    which = fmaxf(which, s[i]);
  }
  float shrink[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], next[row]);
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2)) * scale_log2;
    if (top[row] <= state.top[row] + kSlack) top[row] = state.top[row];
    shrink[row] = exp2_flushed(state.top[row] - top[row]);
    state.top[row] = top[row];
    state.sum[row] *= shrink[row];
  }
#pragma unroll
  for (int i = 0; i < kKeys / 2; ++i) {
    s[i] = exp2_flushed(s[i] * scale_log2 - top[i / 2 % 2]);
    state.sum[i / 2 % 2] += s[i];
  }
  if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
    for (int i = 0; i < S::kDim / 2; ++i) state.o[i] *= shrink[i / 2 % 2];
  }
}

// Zeroes the rows of a frame from `visible` on, by one warpgroup, for the tensor cores to read.
__device__ __forceinline__ void clear_hidden(uint32_t frame, int visible, int group) {
  const int vectors = (kKeys - visible) * 8;  // of 16 bytes, in each chunk
  for (int i = threadIdx.x % 128; i < vectors * (S::kDim / 64); i += 128) {
    clear_shared16(frame + i / vectors * kChunkBytes + visible * 128 + i % vectors * 16);
  }
  publish_shared();
  sync_warps<128>(1 + group);
}

__device__ __forceinline__ void attend(const Ring<S>& ring, State<S>& state, int length, float scale_log2,
                                       int group, int lane) {
  for (int block = group; block * kKeys < length; block += 2) {
    const int visible = min(kKeys, length - block * kKeys);
    float s[kKeys / 2];
    ring.wait_full(key_frame(block));
    score<S>(s, ring.memory, ring.frame(key_frame(block)));
    ring.release(key_frame(block));
    exponentiate(s, state, scale_log2, visible, lane);
    ring.wait_full(value_frame(block));
    const uint32_t values = ring.frame(value_frame(block));
    if (visible < kKeys) clear_hidden(values, visible, group);
    mix<S>(state.o, s, values);
    ring.release(value_frame(block));
  }
}

template <class Out>
__device__ __forceinline__ void run(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                    Out* out, const float* out_scale, const int* prefix_length,
                                    int rows, int keys, float scale) {
  unsigned char* memory = dynamic_shared();
  const Ring<S> ring(shared_address(memory));
  if (threadIdx.x == 0) {
    prefetch_map(q);
    prefetch_map(k);
    prefetch_map(v);
    ring.init();
  }
  const float factor = store_factor<Out>(out_scale);
  __syncthreads();
  pdl_wait();
  const int length = prefix_length ? min(*prefix_length, keys) : keys, first = blockIdx.x * kRows;
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      fetch<S>(q, ring.memory, ring.queries, first, 0);
      produce(k, v, ring, (length + kKeys - 1) / kKeys, 0, 0);
    }
  } else {
    take_registers<232>();
    const int group = threadIdx.x / 128 - 1, lane = threadIdx.x % 32;
    State<S> state = {};
    state.top[0] = state.top[1] = -INFINITY;
    barrier_wait(ring.queries, 0);
    attend(ring, state, length, scale * 1.4426950408889634f, group, lane);
    Out* target = out + static_cast<size_t>(first) * S::kDim;
    join(ring, memory + S::kFrameBytes, state, target, S::kDim, factor, rows - first);
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
