// attention_heads: softmax(scale q k^T) v for many heads and few rows: contexts of some hundred tokens,
// an expert's rows over its own keys or over a context's
// q [M, H, d], k, v [N, Hkv, d] bf16, Hkv divides H; out [M, H d] bf16, or E4M3 with a scale; rows
// *_stride elements apart, the heads of a row side by side. Rows and keys fall into equal runs
// (rows_run, keys_run), a row sees the keys of its run. Keys j of a run with prefix_length[0] <= j <
// prefix_rows are hidden (null: none); causal: so are those behind row j. Hidden keys are never read.
// float32 scores, online softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 48, 64 or 128, 16-byte aligned rows; grid (ceil(rows_run / 16), H, runs), 128 threads
// bound: the chain of dependent steps; 4 M H N d flop on mma.sync
//
// A block has 16 rows of one head. Its four warps take tiles of 16 keys in turn, each with memory,
// copies and a softmax of its own, and join at the end: nobody waits inside. Few rows so make as many
// blocks as they can, and a tile is small enough that short lists of keys keep all warps busy.
// kept: keys, values and prefix_length are an earlier stage's, so they are read before pdl_wait(). This is
// safe behind a kernel that waits before it triggers (action_in does).
// In the entry named _short a warp has at most one tile of keys.
// In the entries named _biased keys count as key_bias [N] float32 says, -inf: not at all; it is kept with
// them.
// Those named _cluster split the keys of few rows over clusters of eight: grid (8 ceil(rows_run / 16), H,
// runs); rows of k and v that fresh [count] int32 names are not kept, the list itself is.
// Those named _normed are _biased, of rows of q that are normalised on their way: what a product has left of
// them, squares [M, runs] float32 the sums of squares of runs of each whole row, runs % 4 == 0, runs <= 128;
// q_norm [H d] float32, the gain is 1 + q_norm.
// Those named _pooled are _cluster, of merged rows qkv [M, 3 H d] of at most 16 a run: q and k are normalised
// likewise (squares of q and then of k, [M, 2 runs]; gains q_norm and k_norm as they are) and turned by rope
// [M, d] float32, cosines and sines; k and v are written to rows fresh [M] of a run's keys.
// source of the online softmax: arXiv 2205.14135
#include "../common/head_rows.cuh"
#include "../common/heads.cuh"
#include "../common/pdl.cuh"
#include "../common/wgmma.cuh"

namespace flashrt {
namespace heads {

template <class S, class Out>
__device__ __forceinline__ void attend(const Args& args, Out* out, const float* out_scale,
                                       int out_stride, int kept) {
  pdl_trigger();
  const float factor = store_factor<Out>(out_scale);
  Heads<S> heads(args, dynamic_shared(), blockIdx.x * kRows, blockIdx.y, blockIdx.z);
  if (kept) heads.begin();
  pdl_wait();
  if (!kept) heads.begin();
  heads.fetch_queries();
  heads.run();
  heads.join_lanes();
  heads.store(out, out_stride, factor);
}

template <class S, class Out>
__device__ __forceinline__ void attend_biased(const Args& args, Out* out, const float* out_scale,
                                              int out_stride, const int* fresh, int count, int kept) {
  pdl_trigger();
  const float factor = store_factor<Out>(out_scale);
  Heads<S> heads(args, dynamic_shared(), blockIdx.x / S::kSplit * kRows, blockIdx.y, blockIdx.z);
  if constexpr (S::kSplit > 1) {
    if (threadIdx.x == 0) heads.expect_pushes();
    __syncwarp();
    cluster_arrive_relaxed();
  }
  if (!kept) pdl_wait();
  if constexpr (S::kSplit > 1) heads.mark_fresh(fresh, count);
  heads.begin();
  pdl_wait();
  heads.fetch_queries();
  if constexpr (S::kSplit > 1) heads.fetch_fresh();
  heads.run();
  heads.join_lanes();
  if constexpr (S::kSplit > 1) {
    cluster_wait();
    heads.store_split(out, out_stride, factor);
  } else {
    heads.store(out, out_stride, factor);
  }
}

template <class S>
__device__ __forceinline__ void attend_normed(const Args& args, const RowNorm& norm, bf16* out,
                                              int out_stride, int kept) {
  using Rows = HeadRows<S::kDim, S::kPitch>;
  pdl_trigger();
  Heads<S> heads(args, dynamic_shared(), blockIdx.x * kRows, blockIdx.y, blockIdx.z);
  if (kept) heads.begin();
  const int head = blockIdx.y * S::kDim, own = blockIdx.x * kRows + Rows::row();
  const int row = blockIdx.z * args.rows + own;
  typename Rows::Values gain, values;
  typename Rows::Row loaded;
  Rows::load(norm.gain + head, gain);
  Rows::add(gain, 1.0f);
  const bf16* source = Rows::numbers_at(args.q + static_cast<size_t>(row) * args.q_stride + head);
  const float* squares = Rows::squares_at(norm.squares + static_cast<size_t>(row) * norm.stride);
  pdl_wait();
  Rows::load(source, own < args.rows, loaded);
  Rows::load_squares(squares, norm.runs, own < args.rows, loaded);
  if (!kept) heads.begin();
  Rows::normalise(loaded, gain, norm.share, norm.eps, values);
  bf16* queries = reinterpret_cast<bf16*>(dynamic_shared() + S::kSharedBytes);
  Rows::store(queries + Rows::row() * S::kPitch, values);
  __syncthreads();
  heads.load_queries(queries);
  heads.run();
  heads.join_lanes();
  heads.store(out, out_stride, 1.0f);
}

// Rows of k and v of which some are what these rows of qkv hold.
struct Pool {
  bf16 *k, *v;
  const float *k_norm, *rope;
  const int* fresh;
  int count, rope_stride;
};

template <class S>
__device__ __forceinline__ void attend_pooled(const Args& args, const RowNorm& norm, const Pool& pool,
                                              bf16* out, int out_stride, int kept) {
  using Rows = HeadRows<S::kDim, S::kPitch>;
  pdl_trigger();
  Heads<S> heads(args, dynamic_shared(), 0, blockIdx.y, blockIdx.z);
  if (threadIdx.x == 0) heads.expect_pushes();
  __syncwarp();
  if (!kept) pdl_wait();
  heads.mark_fresh(pool.fresh, pool.count);
  heads.begin();
  const int head = blockIdx.y * S::kDim, run = blockIdx.z, own = Rows::row();
  const bool inside = own < args.rows;
  const int row = run * args.rows + (inside ? own : 0);
  const int at = pool.fresh[row], key = at - run * args.keys;
  const bool brings = inside && heads.takes(key);
  typename Rows::Values q_gain, k_gain = {}, angles, q, k;
  typename Rows::Row query, fresh, value;
  Rows::load(norm.gain + head, q_gain);
  if (brings) Rows::load(pool.k_norm + head, k_gain);
  Rows::load(pool.rope + static_cast<size_t>(row) * pool.rope_stride, angles);
  const int width = gridDim.y * S::kDim;
  const bf16* source = Rows::numbers_at(args.q + static_cast<size_t>(row) * args.q_stride + head);
  const float* squares = Rows::squares_at(norm.squares + static_cast<size_t>(row) * norm.stride);
  pdl_wait();
  Rows::load(source, inside, query);
  Rows::load_squares(squares, norm.runs, inside, query);
  Rows::load(source + width, brings, fresh);
  Rows::load_squares(squares + norm.runs, norm.runs, brings, fresh);
  Rows::load(source + 2 * width, brings, value);
  Rows::normalise(query, q_gain, norm.share, norm.eps, q);
  Rows::turn(q, angles);
  // Queries lie where sums are pushed to: a block arrives at the cluster once it has read them.
  bf16* queries = reinterpret_cast<bf16*>(dynamic_shared() + S::kReceived);
  Rows::store(queries + own * S::kPitch, q);
  if (__any_sync(0xffffffffu, brings)) {
    Rows::normalise(fresh, k_gain, norm.share, norm.eps, k);
    Rows::turn(k, angles);
    if (brings) {
      Rows::store(pool.k + static_cast<size_t>(at) * args.k_stride + head, k);
      Rows::store(pool.v + static_cast<size_t>(at) * args.v_stride + head, value);
      if (bf16* place = heads.fresh_place(key, 0)) {
        Rows::store(place, k);
        Rows::store(heads.fresh_place(key, 1), value);
      }
    }
  }
  __syncthreads();
  heads.load_queries(queries);
  cluster_arrive_relaxed();
  heads.run();
  heads.join_lanes();
  cluster_wait();
  heads.store_split(out, out_stride, 1.0f);
}

using Biased128 = Shape<128, 2, 0, true>;
static_assert(Biased128::kSharedBytes == 70144, "as the launcher has it");
static_assert(Biased128::kSharedBytes + kRows * Biased128::kPitch * 2 == 74496, "as the launcher has it");
using Short128 = Shape<128, 1, 0, true, 1, true>;
static_assert(Short128::kSharedBytes + kRows * Short128::kPitch * 2 == 39424, "as the launcher has it");
using Split128 = Shape<128, 3, 0, true, 8>;
static_assert(Split128::kSharedBytes == 113552, "as the launcher has it");
static_assert(kRows * Split128::kPitch * 2 <= kRows * Split128::kDim * 4, "queries have a place");
using Short48 = Shape<48, 1, 0, false, 1, true>;
static_assert(Short48::kSharedBytes == 14336, "as the launcher has it");
using Wide48 = Shape<48, 4>;
static_assert(Wide48::kSharedBytes == 57344, "as the launcher has it");
using Wide64 = Shape<64, 4>;
static_assert(Wide64::kSharedBytes == 73728, "as the launcher has it");
using Wide128 = Shape<128, 2>;
static_assert(Wide128::kSharedBytes == 69632, "as the launcher has it");

}  // namespace heads
}  // namespace flashrt

#define FLASHRT_HEADS(name, Shape, Out)                                                            \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const int* prefix_length, int rows_run, int keys_run,           \
           int prefix_rows, int group, int causal, int kept, int q_stride, int k_stride,           \
           int v_stride, int out_stride, float scale) {                                            \
    flashrt::heads::attend<flashrt::heads::Shape>(                                                 \
        {q, k, v, prefix_length, rows_run, keys_run, prefix_rows, q_stride, k_stride, v_stride,    \
         group, causal, scale * 1.4426950408889634f},                                              \
        out, out_scale, out_stride, kept);                                                         \
  }

FLASHRT_HEADS(attention_heads_d48_short_bf16, Short48, flashrt::bf16)
FLASHRT_HEADS(attention_heads_d48_bf16, Wide48, flashrt::bf16)
FLASHRT_HEADS(attention_heads_d64_bf16, Wide64, flashrt::bf16)
FLASHRT_HEADS(attention_heads_d128_bf16, Wide128, flashrt::bf16)
FLASHRT_HEADS(attention_heads_d48_fp8, Wide48, flashrt::e4m3)
FLASHRT_HEADS(attention_heads_d64_fp8, Wide64, flashrt::e4m3)
FLASHRT_HEADS(attention_heads_d128_fp8, Wide128, flashrt::e4m3)

#define FLASHRT_HEADS_BIASED(name, Shape, Out)                                                     \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const float* key_bias, const int* fresh, int count, int kept,   \
           int rows_run, int keys_run, int group, int q_stride, int k_stride, int v_stride,        \
           int out_stride, float scale) {                                                          \
    flashrt::heads::attend_biased<flashrt::heads::Shape>(                                          \
        {q, k, v, nullptr, rows_run, keys_run, 0, q_stride, k_stride, v_stride, group, 0,          \
         scale * 1.4426950408889634f, key_bias},                                                   \
        out, out_scale, out_stride, fresh, count, kept);                                           \
  }

FLASHRT_HEADS_BIASED(attention_heads_d128_biased_bf16, Biased128, flashrt::bf16)
FLASHRT_HEADS_BIASED(attention_heads_d128_biased_fp8, Biased128, flashrt::e4m3)

#define FLASHRT_HEADS_NORMED(name, Shape)                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v,                 \
           flashrt::bf16* out, const float* key_bias, const float* squares, const float* q_norm,   \
           int runs, int kept, int rows_run, int keys_run, int group, int q_stride, int k_stride,  \
           int v_stride, int out_stride, float scale, float eps) {                                 \
    const float share = 1.0f / static_cast<float>(gridDim.y * flashrt::heads::Shape::kDim);        \
    flashrt::heads::attend_normed<flashrt::heads::Shape>(                                          \
        {q, k, v, nullptr, rows_run, keys_run, 0, q_stride, k_stride, v_stride, group, 0,          \
         scale * 1.4426950408889634f, key_bias},                                                   \
        {squares, q_norm, runs, runs, share, eps}, out, out_stride, kept);                         \
  }

#define FLASHRT_HEADS_POOLED(name, Shape)                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* qkv, flashrt::bf16* k, flashrt::bf16* v, flashrt::bf16* out,       \
           const float* key_bias, const float* squares, const float* q_norm, const float* k_norm,  \
           const float* rope, const int* fresh, int count, int runs, int kept, int rows_run,       \
           int keys_run, int qkv_stride, int k_stride, int v_stride, int out_stride,               \
           int rope_stride, float scale, float eps) {                                              \
    const float share = 1.0f / static_cast<float>(gridDim.y * flashrt::heads::Shape::kDim);        \
    flashrt::heads::attend_pooled<flashrt::heads::Shape>(                                          \
        {qkv, k, v, nullptr, rows_run, keys_run, 0, qkv_stride, k_stride, v_stride, 1, 0,          \
         scale * 1.4426950408889634f, key_bias},                                                   \
        {squares, q_norm, runs, 2 * runs, share, eps}, {k, v, k_norm, rope, fresh, count,          \
        rope_stride}, out, out_stride, kept);                                                      \
  }

#ifdef FLASHRT_SM90A  // as the products that leave sums of squares
FLASHRT_HEADS_NORMED(attention_heads_d128_normed_bf16_hopper, Biased128)
FLASHRT_HEADS_NORMED(attention_heads_d128_normed_short_bf16_hopper, Short128)
FLASHRT_HEADS_POOLED(attention_heads_d128_pooled_bf16_hopper, Split128)
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
FLASHRT_HEADS_BIASED(attention_heads_d128_biased_bf16_cluster, Split128, flashrt::bf16)
FLASHRT_HEADS_BIASED(attention_heads_d128_biased_fp8_cluster, Split128, flashrt::e4m3)
#endif
