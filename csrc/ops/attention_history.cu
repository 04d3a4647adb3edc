// attention_history: as attention_heads_d128_biased_*_cluster (attention_heads.cu), in other orders of what
// comes before the kernels in front have come to their end
// *_rows_cluster: asks for whole rows of keys and values in the second-level cache, every block for its share
// *_kept_*cluster: keys, values, biases and `fresh` are an earlier stage's but for the rows that fresh [count]
// int32 names, which an op in front writes; so they are read before pdl_wait(). This is safe behind a
// kernel that waits before it triggers (action_in does).
// grid (8 ceil(rows_run / 16), H, runs), cluster 8, 128 threads
// bound: the bytes of k and v
#include "attention_heads.cu"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900

namespace flashrt {
namespace heads {

using Split128Early = Shape<128, 3, 4, 0, true, 8, false, true>;
static_assert(Split128Early::kSharedBytes == Split128::kSharedBytes, "as the launcher has it");

// kAsk: 0 nothing, 1 tiles of this block that are not under way, 2 all rows.
template <class S, int kAsk, class Out>
__device__ __forceinline__ void attend_history(const Args& args, Out* out, const float* out_scale,
                                               int out_stride, const int* fresh, int count) {
  pdl_trigger();
  Heads<S> heads(args, dynamic_shared(), blockIdx.x / S::kSplit * kRows, blockIdx.y, blockIdx.z);
  if (threadIdx.x == 0) heads.expect_pushes();
  __syncwarp();
  cluster_arrive();
  if constexpr (kAsk == 2) heads.ask_rows();
  if constexpr (S::kEarly) {
    heads.mark_fresh(fresh, count);
    heads.begin();
    if constexpr (kAsk == 1) heads.ask(S::kStages);
  }
  const float factor = store_factor<Out>(out_scale);
  pdl_wait();
  if constexpr (!S::kEarly) heads.begin();
  heads.fetch_queries();
  if constexpr (S::kEarly) heads.fetch_fresh();
  heads.run();
  heads.join_lanes();
  cluster_wait();
  heads.store_split(out, out_stride, factor);
}

// Keys, values and biases are an earlier stage's.
template <class S, class Out>
__device__ __forceinline__ void attend_prompt(const Args& args, Out* out, const float* out_scale,
                                              int out_stride) {
  pdl_trigger();
  Heads<S> heads(args, dynamic_shared(), blockIdx.x * kRows, blockIdx.y, blockIdx.z);
  heads.begin();
  const float factor = store_factor<Out>(out_scale);
  pdl_wait();
  heads.fetch_queries();
  heads.run();
  heads.join_lanes();
  heads.store(out, out_stride, factor);
}

}  // namespace heads
}  // namespace flashrt

#define FLASHRT_PROMPT(name, Shape, Out)                                                           \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const float* key_bias, int rows_run, int keys_run, int group,   \
           int q_stride, int k_stride, int v_stride, int out_stride, float scale) {                \
    flashrt::heads::attend_prompt<flashrt::heads::Shape>(                                          \
        {q, k, v, nullptr, rows_run, keys_run, 0, q_stride, k_stride, v_stride, group, 0,          \
         scale * 1.4426950408889634f, key_bias},                                                   \
        out, out_scale, out_stride);                                                               \
  }

FLASHRT_PROMPT(attention_heads_d128_biased_kept_bf16, Biased128, flashrt::bf16)

#define FLASHRT_HISTORY(name, Shape, kAsk, Out)                                                    \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const float* key_bias, const int* fresh, int count,             \
           int rows_run, int keys_run, int group, int q_stride, int k_stride, int v_stride,        \
           int out_stride, float scale) {                                                          \
    flashrt::heads::attend_history<flashrt::heads::Shape, kAsk>(                                   \
        {q, k, v, nullptr, rows_run, keys_run, 0, q_stride, k_stride, v_stride, group, 0,          \
         scale * 1.4426950408889634f, key_bias},                                                   \
        out, out_scale, out_stride, fresh, count);                                                 \
  }

FLASHRT_HISTORY(attention_history_d128_bf16_rows_cluster, Split128, 2, flashrt::bf16)
FLASHRT_HISTORY(attention_history_d128_bf16_kept_cluster, Split128Early, 1, flashrt::bf16)
FLASHRT_HISTORY(attention_history_d128_bf16_kept_rows_cluster, Split128Early, 2, flashrt::bf16)
FLASHRT_HISTORY(attention_history_d128_bf16_kept_alone_cluster, Split128Early, 0, flashrt::bf16)
#endif
