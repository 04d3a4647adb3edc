// attention_rows: softmax(scale q k^T) v for any head width and head sharing, one warp a query head
// q [M, H, d], k, v [N, Hkv, d], out [M, H d] bf16, or E4M3 with a scale; strides in elements; rows and keys fall into
// equal runs (rows_run, keys_run), a row sees the keys of its run. Keys j with
// prefix_length[0] <= j < prefix_rows are never read (one run only; null: every key counts). causal: row
// i of a run sees no key behind i.
// In the entries named _biased keys count as key_bias [N] float32 says (null: all alike), -inf: not at all.
// float32 throughout. For shapes that have no tensor-core kernel, such as the tiny preset's.
// needs d <= 256, or 768 in the entries named _wide; grid (ceil(M H / 4)), 128 threads
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/reduce.cuh"
#include "../common/vector.cuh"

namespace flashrt {

template <int kParts, bool kBiased, class Out>
__device__ __forceinline__ void attention_rows(const bf16* q, const bf16* k, const bf16* v, Out* out,
                                               const float* out_scale, const int* prefix_length,
                                               int rows, int heads, int kv_heads, int head_dim,
                                               int rows_run, int keys_run, int prefix_rows,
                                               int causal, int q_stride, int k_stride,
                                               int v_stride, int out_stride, float scale,
                                               const float* key_bias = nullptr) {
  pdl_trigger();
  const float factor = store_factor<Out>(out_scale);
  pdl_wait();
  // kParts values of a head a lane holds, 32 apart.
  const int item = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (item >= rows * heads) return;
  const int row = item / heads, head = item % heads, kv_head = head / (heads / kv_heads);
  const int run = row / rows_run, first = run * keys_run;
  const int hidden = prefix_length ? *prefix_length : prefix_rows;
  float query[kParts], mixed[kParts] = {}, top = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int column = lane + 32 * i;
    query[i] = column < head_dim
                   ? __bfloat162float(q[static_cast<size_t>(row) * q_stride + head * head_dim + column])
                   : 0.0f;
  }
  const int keys = causal ? min(row - run * rows_run + 1, keys_run) : keys_run;
#pragma unroll 1
  for (int j = 0; j < keys; ++j) {
    if (prefix_length && j >= hidden && j < prefix_rows) continue;
    float bias = 0.0f;
    if constexpr (kBiased) {
      if (key_bias) bias = key_bias[first + j];
      if (bias == -INFINITY) continue;
    }
    const bf16* key = k + static_cast<size_t>(first + j) * k_stride + kv_head * head_dim;
    const bf16* value = v + static_cast<size_t>(first + j) * v_stride + kv_head * head_dim;
    float score = 0.0f;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int column = lane + 32 * i;
      if (column < head_dim) score += query[i] * __bfloat162float(key[column]);
    }
    score = warp_sum(score) * scale;
    if constexpr (kBiased) score += bias;
    const float next = fmaxf(top, score), shrink = __expf(top - next), p = __expf(score - next);
    top = next;
    sum = sum * shrink + p;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      const int column = lane + 32 * i;
      if (column < head_dim) mixed[i] = mixed[i] * shrink + p * __bfloat162float(value[column]);
    }
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int column = lane + 32 * i;
    if (column < head_dim) {
      store1(out + static_cast<size_t>(row) * out_stride + head * head_dim + column, mixed[i] / sum,
             factor);
    }
  }
}

}  // namespace flashrt

#define FLASHRT_ATTENTION_ROWS(name, Out)                                                          \
  extern "C" __global__ void __launch_bounds__(128, 8)                                             \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const int* prefix_length, int rows, int heads, int kv_heads,    \
           int head_dim, int rows_run, int keys_run, int prefix_rows, int causal, int q_stride,    \
           int k_stride, int v_stride, int out_stride, float scale) {                              \
    flashrt::attention_rows<8, false>(q, k, v, out, out_scale, prefix_length, rows, heads,         \
                                      kv_heads, head_dim, rows_run, keys_run, prefix_rows, causal, \
                                      q_stride, k_stride, v_stride, out_stride, scale);            \
  }

FLASHRT_ATTENTION_ROWS(attention_rows_bf16, flashrt::bf16)
FLASHRT_ATTENTION_ROWS(attention_rows_fp8, flashrt::e4m3)

#define FLASHRT_ATTENTION_ROWS_BIASED(name, kParts, Out)                                           \
  extern "C" __global__ void __launch_bounds__(128, 2)                                             \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const int* prefix_length, int rows, int heads, int kv_heads,    \
           int head_dim, int rows_run, int keys_run, int prefix_rows, int causal, int q_stride,    \
           int k_stride, int v_stride, int out_stride, float scale, const float* key_bias) {       \
    flashrt::attention_rows<kParts, true>(q, k, v, out, out_scale, prefix_length, rows, heads,     \
                                          kv_heads, head_dim, rows_run, keys_run, prefix_rows,     \
                                          causal, q_stride, k_stride, v_stride, out_stride, scale, \
                                          key_bias);                                               \
  }

FLASHRT_ATTENTION_ROWS_BIASED(attention_rows_biased_bf16, 8, flashrt::bf16)
FLASHRT_ATTENTION_ROWS_BIASED(attention_rows_biased_fp8, 8, flashrt::e4m3)
FLASHRT_ATTENTION_ROWS_BIASED(attention_rows_biased_wide_bf16, 24, flashrt::bf16)
FLASHRT_ATTENTION_ROWS_BIASED(attention_rows_biased_wide_fp8, 24, flashrt::e4m3)
