// attention_biased: softmax(scale q k^T + key_bias) v of many heads over long lists of keys that count as
// their bias says, -inf: not at all (sm_90a)
// q [M, H, d], k, v [N, H, d] bf16, as tile maps of 64 x 64 values (128-byte swizzle); key_bias [N] float32;
// out [M, H d] bf16, or E4M3 with a scale, rows out_stride elements apart. Rows and keys fall into equal
// runs (rows_run, keys_run), a row sees the keys of its run. A key of -inf may hold anything: its score is
// set, and its values are cleared in shared memory before they are used.
//
// A block owns 64 rows of one head (warpgroup_attention_sm90.cuh), in the entries named _shared beside
// another one in a cluster, which has 64 rows more of the same run; biases of its run, times log2(e), lie in
// shared memory.
// float32 scores, online softmax and sums; probabilities are rounded to bf16 for the second product
// _kept: for at most 128 keys; these, their values and biases are an earlier stage's, so they are read before
// pdl_wait(), which is safe behind a kernel that waits before it triggers (action_in does).
// needs d = 128; grid (ceil(rows_run / 64), H, runs), an even number with _shared, 384 threads, 4 bytes of
// shared memory a key
// bound: 4 M H N d flop, or the bytes of k and v.   source of the online softmax: arXiv 2205.14135
#include "../common/pdl.cuh"
#include "../common/warpgroup_attention_sm90.cuh"

namespace flashrt {
namespace biased_sm90 {

using namespace warpgroup_attention;

constexpr int kDim = 128, kFrames = 8;
template <class S>
constexpr int kBiases = (S::kBytes + 15) / 16 * 16;
using Alone = Shape<kDim, kFrames>;
using Shared = Shape<kDim, kFrames, 2>;
using Kept = Shape<kDim, 4>;
static_assert(kBiases<Alone> == 147600 && kBiases<Shared> == 147600, "as the launcher has it");
static_assert(kBiases<Kept> == 82000, "as the launcher has it");

#ifdef FLASHRT_SM90A

// Biases in base 2 of all blocks of keys, -inf behind the last key; behind them a word a block: whether it
// has keys that do not count. By both math warpgroups, which meet at the end.
__device__ __forceinline__ void fetch_biases(float* biases, int* hides, const float* key_bias, int keys,
                                             int blocks) {
  for (int block = threadIdx.x - 128; block < blocks; block += 256) hides[block] = 0;
  sync_warps<1, 256>();
  for (int key = threadIdx.x - 128; key < blocks * kKeys; key += 256) {
    const float bias = key < keys ? load_fresh(key_bias + key) * 1.4426950408889634f : -INFINITY;
    biases[key] = bias;
    if (bias == -INFINITY) hides[key / kKeys] = 1;
  }
  sync_warps<1, 256>();
}

// Scores -> probabilities in `s`, relative to a base that follows the maximum only when that has grown
// by more than 2^8, so that most blocks rescale nothing; returns how much old sums and outputs shrink.
template <class S>
__device__ __forceinline__ float2 exponentiate(float (&s)[32], State<S>& state, const float* biases,
                                               float scale_log2, int lane) {
  float top[2] = {state.top[0], state.top[1]};
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const float bias = biases[i / 4 * 8 + lane % 4 * 2 + i % 2];
    s[i] = bias > -INFINITY ? fmaf(s[i], scale_log2, bias) : -INFINITY;
    top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
  }
  float shrink[2], base[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2));
    if (top[row] <= state.top[row] + kSlack) top[row] = state.top[row];
    base[row] = top[row] == -INFINITY ? 0.0f : top[row];  // no key yet: all sums are zero
    shrink[row] = exp2_flushed(state.top[row] - base[row]);
    state.top[row] = top[row];
    state.sum[row] *= shrink[row];
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    s[i] = exp2_flushed(s[i] - base[i / 2 % 2]);
    state.sum[i / 2 % 2] += s[i];
  }
  return make_float2(shrink[0], shrink[1]);
}

// Clears the rows of a frame of values whose keys do not count, by one warpgroup.
__device__ __forceinline__ void clear_hidden(unsigned char* frame, const float* biases, int group) {
  constexpr int kVectors = kChunkBytes / 16, kRow = 8;  // of 16 bytes, of a chunk and of its rows
  for (int i = threadIdx.x % 128; i < kDim / 64 * kVectors; i += 128) {
    if (biases[i % kVectors / kRow] > -INFINITY) continue;
    reinterpret_cast<uint4*>(frame)[i] = {};
  }
  publish_shared();
  sync_warps<128>(2 + group);
}

template <class S>
__device__ __forceinline__ void attend(const Ring<S>& ring, unsigned char* memory, State<S>& state,
                                       const float* biases, const int* hides, int blocks,
                                       float scale_log2, int group, int lane) {
  for (int block = group; block < blocks; block += 2) {
    float s[32];
    ring.wait_full(key_frame(block));
    score<S>(s, ring.memory, ring.frame(key_frame(block)));
    ring.release(key_frame(block));
    const float2 shrink = exponentiate(s, state, biases + block * kKeys, scale_log2, lane);
    if (__any_sync(0xffffffffu, shrink.x != 1.0f || shrink.y != 1.0f)) {
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) state.o[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
    }
    ring.wait_full(value_frame(block));
    const uint32_t values = ring.frame(value_frame(block));
    if (hides[block]) clear_hidden(memory + (values - ring.memory), biases + block * kKeys, group);
    mix<S>(state.o, s, values);
    ring.release(value_frame(block));
  }
}

template <class S, bool kKept, class Out>
__device__ __forceinline__ void run(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                    const float* key_bias, Out* out, const float* out_scale, int rows,
                                    int keys, int out_stride, float scale) {
  unsigned char* memory = dynamic_shared();
  const Ring<S> ring(shared_address(memory));
  pdl_trigger();
  if (threadIdx.x == 0) {
    prefetch_map(q);
    prefetch_map(k);
    prefetch_map(v);
    ring.init();
  }
  const float factor = store_factor<Out>(out_scale);
  __syncthreads();
  if constexpr (S::kShare > 1) {
    cluster_arrive();
    cluster_wait();
  }
  if constexpr (!kKept) pdl_wait();
  const int blocks = (keys + kKeys - 1) / kKeys, first = blockIdx.x * kRows;
  const int column = blockIdx.y * kDim, run = blockIdx.z;
  if (threadIdx.x < 128) {
    give_registers<40>();
    if (threadIdx.x == 0) {
      if constexpr (kKept) {
        produce(k, v, ring, blocks, run * keys, column);
        pdl_wait();
      }
      fetch<S>(q, ring.memory, ring.queries, run * rows + first, column);
      if constexpr (!kKept) produce(k, v, ring, blocks, run * keys, column);
    }
  } else {
    take_registers<232>();
    float* biases = reinterpret_cast<float*>(memory + kBiases<S>);
    int* hides = reinterpret_cast<int*>(biases + blocks * kKeys);
    fetch_biases(biases, hides, key_bias + static_cast<size_t>(run) * keys, keys, blocks);
    if constexpr (kKept) pdl_wait();
    State<S> state = {};
    state.top[0] = state.top[1] = -INFINITY;
    barrier_wait(ring.queries, 0);
    attend(ring, memory, state, biases, hides, blocks, scale * 1.4426950408889634f,
           threadIdx.x / 128 - 1, threadIdx.x % 32);
    Out* target = out + (static_cast<size_t>(run) * rows + first) * out_stride + column;
    join(ring, memory + S::kFrameBytes, state, target, out_stride, factor, rows - first);
  }
  if constexpr (S::kShare > 1) {  // nobody sends anything to a block that has left
    __syncwarp();
    cluster_arrive();
    cluster_wait();
  }
}

#endif

}  // namespace biased_sm90
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_BIASED_SM90(name, Share, kKept, Out)                                               \
  extern "C" __global__ void __launch_bounds__(384, 1)                                             \
      name(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,           \
           const __grid_constant__ CUtensorMap v, const float* key_bias, Out* out,                 \
           const float* out_scale, int rows, int keys, int out_stride, float scale) {              \
    flashrt::biased_sm90::run<flashrt::biased_sm90::Share, kKept>(                                 \
        q, k, v, key_bias, out, out_scale, rows, keys, out_stride, scale);                         \
  }

FLASHRT_BIASED_SM90(attention_biased_d128_bf16_sm90, Alone, false, flashrt::bf16)
FLASHRT_BIASED_SM90(attention_biased_d128_fp8_sm90, Alone, false, flashrt::e4m3)
FLASHRT_BIASED_SM90(attention_biased_d128_shared_bf16_sm90, Shared, false, flashrt::bf16)
FLASHRT_BIASED_SM90(attention_biased_d128_shared_fp8_sm90, Shared, false, flashrt::e4m3)
FLASHRT_BIASED_SM90(attention_biased_d128_kept_bf16_sm90, Kept, true, flashrt::bf16)
FLASHRT_BIASED_SM90(attention_biased_d128_kept_fp8_sm90, Kept, true, flashrt::e4m3)
#endif
