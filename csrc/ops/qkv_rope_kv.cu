// qkv_rope_kv: splits merged rows [q | k | v], turns q and k by their rotary angles, writes all three
// qkv [M, (Hq + 2 Hkv) d] bf16; rope [M, d] float32, cosines of the d/2 angles then their sines;
// q [M, Hq d], k, v [M, Hkv d] bf16; strides in elements; Hq may be 0 (keys and values only)
// half-split pairing: column i of a head turns with column i + d/2; float32, one rounding
// needs d % 16 == 0, 16-byte aligned rows; one block a row
// bound: memory, 4 M (Hq + 2 Hkv) d + 4 M d bytes
#include "../common/pdl.cuh"
#include "../common/reduce.cuh"
#include "../common/stream.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(1024)
    qkv_rope_kv_bf16(const bf16* qkv, const float* rope, bf16* q, bf16* k, bf16* v, int q_heads,
                     int kv_heads, int head_dim, int qkv_stride, int rope_stride, int q_stride,
                     int k_stride, int v_stride) {
  pdl_trigger();
  const size_t row = blockIdx.x;
  const int half = head_dim / 2, vectors = half / 8;  // vectors of eight angles a head
  const bf16* source = qkv + row * qkv_stride;
  const float* angles = rope + row * rope_stride;
  const int turned = (q_heads + kv_heads) * vectors;
  const int total = turned + 2 * kv_heads * vectors;
  pdl_wait();
  for (int item = threadIdx.x; item < total; item += blockDim.x) {
    if (item >= turned) {  // values: copied as they are
      const int column = (item - turned) * 8;
      const uint4* from =
          reinterpret_cast<const uint4*>(source + (q_heads + kv_heads) * head_dim + column);
      *reinterpret_cast<uint4*>(v + row * v_stride + column) = *from;
      continue;
    }
    const int head = item / vectors, column = item % vectors * 8;
    float first[8], second[8], cosine[8], sine[8], left[8], right[8];
    load8(source + head * head_dim + column, first);
    load8(source + head * head_dim + half + column, second);
    load8(angles + column, cosine);
    load8(angles + half + column, sine);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      left[i] = first[i] * cosine[i] - second[i] * sine[i];
      right[i] = second[i] * cosine[i] + first[i] * sine[i];
    }
    bf16* target = head < q_heads ? q + row * q_stride + head * head_dim
                                  : k + row * k_stride + (head - q_heads) * head_dim;
    store8(target + column, left);
    store8(target + half + column, right);
  }
}

namespace flashrt {

// Two neighbours of a head and their partners half a head further.
struct HeadPairs {
  float2 low, high;
};

}  // namespace flashrt

// With RMS norms of the heads of q and k (gains q_norm, k_norm [d] float32) in front of the turn: a
// warp a head, whose lanes hold two neighbours and their partners.
// needs d <= 256, d % 4 == 0, 4-byte aligned rows; grid (ceil((Hq + 2 Hkv) / 8), M), 256 threads
extern "C" __global__ void __launch_bounds__(256)
    qkv_norm_rope_kv_bf16(const bf16* qkv, const float* rope, const float* q_norm, const float* k_norm,
                          bf16* q, bf16* k, bf16* v, int q_heads, int kv_heads, int head_dim,
                          int qkv_stride, int rope_stride, int q_stride, int k_stride, int v_stride,
                          float eps) {
  constexpr int kTurns = 2;  // of 64 columns, in half a head
  pdl_trigger();
  const size_t row = blockIdx.y;
  const int head = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, half = head_dim / 2;
  if (head >= q_heads + 2 * kv_heads) return;  // a block's other warps do not wait for this one
  const bool turned = head < q_heads + kv_heads;
  const float* norm = head < q_heads ? q_norm : k_norm;
  HeadPairs gain[kTurns] = {}, value[kTurns] = {};
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int column = i * 64 + lane * 2;
    if (turned && column < half) {
      gain[i].low = *reinterpret_cast<const float2*>(norm + column);
      gain[i].high = *reinterpret_cast<const float2*>(norm + half + column);
    }
  }
  bf16* target = head < q_heads              ? q + row * q_stride + head * head_dim
                 : head < q_heads + kv_heads ? k + row * k_stride + (head - q_heads) * head_dim
                                             : v + row * v_stride + (head - q_heads - kv_heads) * head_dim;
  pdl_wait();
  const bf16* source = qkv + row * qkv_stride + head * head_dim;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int column = i * 64 + lane * 2;
    if (column < half) {
      value[i].low = unpack2(*reinterpret_cast<const uint32_t*>(source + column));
      value[i].high = unpack2(*reinterpret_cast<const uint32_t*>(source + half + column));
      const HeadPairs& w = value[i];
      squares += w.low.x * w.low.x + w.low.y * w.low.y + w.high.x * w.high.x + w.high.y * w.high.y;
    }
  }
  const float scale = rsqrtf(warp_sum(squares) / head_dim + eps);
#pragma unroll
  for (int i = 0; i < kTurns; ++i) {
    const int column = i * 64 + lane * 2;
    if (column >= half) continue;
    float2 low = value[i].low, high = value[i].high;
    if (turned) {
      const float2 a = {low.x * scale * gain[i].low.x, low.y * scale * gain[i].low.y};
      const float2 b = {high.x * scale * gain[i].high.x, high.y * scale * gain[i].high.y};
      const float* angles = rope + row * rope_stride + column;
      const float2 cosine = *reinterpret_cast<const float2*>(angles);
      const float2 sine = *reinterpret_cast<const float2*>(angles + half);
      low = {a.x * cosine.x - b.x * sine.x, a.y * cosine.y - b.y * sine.y};
      high = {b.x * cosine.x + a.x * sine.x, b.y * cosine.y + a.y * sine.y};
    }
    *reinterpret_cast<uint32_t*>(target + column) = pack2(low.x, low.y);
    *reinterpret_cast<uint32_t*>(target + half + column) = pack2(high.x, high.y);
  }
}

// With RMS norms of whole rows of q and of k (gains [Hq d], [Hkv d] float32, or null) in front of the turn,
// and rows of the caches that `rows` [M] names (null: row i). A thread has eight numbers and their partners
// half a head further, and eight values.
// needs d % 16 == 0, (Hq + Hkv) d <= 16384, 16-byte aligned rows; one block a row
extern "C" __global__ void __launch_bounds__(1024)
    qkv_row_norm_rope_kv_bf16(const bf16* qkv, const float* rope, const float* q_norm,
                              const float* k_norm, const int* rows, bf16* q, bf16* k, bf16* v,
                              int q_heads, int kv_heads, int head_dim, int qkv_stride, int rope_stride,
                              int q_stride, int k_stride, int v_stride, float eps) {
  __shared__ float slots[2][32];
  pdl_trigger();
  const size_t row = blockIdx.x;
  const int half = head_dim / 2, vectors = half / 8;  // vectors of eight angles a head
  const int turned = (q_heads + kv_heads) * vectors, item = threadIdx.x;
  const int head = item / vectors, column = item % vectors * 8;
  const bool inside = item < turned, of_q = head < q_heads;
  const float* gains = of_q ? q_norm : k_norm;
  float first_gain[8], second_gain[8], first[8] = {}, second[8] = {};
  if (inside && gains) {
    const float* gain = gains + (of_q ? head : head - q_heads) * head_dim + column;
    load8(gain, first_gain);
    load8(gain + half, second_gain);
  }
  pdl_wait();
  const bf16* source = qkv + row * qkv_stride;
  const size_t at = rows ? rows[row] : row;
  for (int i = item; i < 2 * kv_heads * vectors; i += blockDim.x) {  // values: copied as they are
    *reinterpret_cast<uint4*>(v + at * v_stride + i * 8) =
        *reinterpret_cast<const uint4*>(source + (q_heads + kv_heads) * head_dim + i * 8);
  }
  if (inside) {
    load8(source + head * head_dim + column, first);
    load8(source + head * head_dim + half + column, second);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += first[i] * first[i] + second[i] * second[i];
  const float q_sum = block_sum(of_q ? squares : 0.0f, slots[0]);
  const float k_sum = block_sum(of_q ? 0.0f : squares, slots[1]);
  if (!inside) return;
  if (gains) {
    const float mean = of_q ? q_sum / (q_heads * head_dim) : k_sum / (kv_heads * head_dim);
    const float scale = rsqrtf(mean + eps);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      first[i] *= scale * first_gain[i];
      second[i] *= scale * second_gain[i];
    }
  }
  const float* angles = rope + row * rope_stride + column;
  float cosine[8], sine[8], left[8], right[8];
  load8(angles, cosine);
  load8(angles + half, sine);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    left[i] = first[i] * cosine[i] - second[i] * sine[i];
    right[i] = second[i] * cosine[i] + first[i] * sine[i];
  }
  bf16* target = of_q ? q + row * q_stride + head * head_dim
                      : k + at * k_stride + (head - q_heads) * head_dim;
  store8(target + column, left);
  store8(target + half + column, right);
}

// The same where rope and rows are there before the kernels in front have come to their end, with one
// meeting of the block: gains are there, q and k are whole warps.
// needs Hq d % 512 == 0, (Hq + Hkv) d <= 8192; (Hq + Hkv) d / 16 threads
extern "C" __global__ void __launch_bounds__(512)
    qkv_row_norm_rope_kv_kept_bf16(const bf16* qkv, const float* rope, const float* q_norm,
                                    const float* k_norm, const int* rows, bf16* q, bf16* k, bf16* v,
                                    int q_heads, int kv_heads, int head_dim, int qkv_stride,
                                    int rope_stride, int q_stride, int k_stride, int v_stride,
                                    float eps) {
  __shared__ float slots[16];
  pdl_trigger();
  const size_t row = blockIdx.x;
  const int half = head_dim / 2, vectors = half / 8, item = threadIdx.x;
  const int head = item / vectors, column = item % vectors * 8;
  const bool of_q = head < q_heads;
  const float* gain = of_q ? q_norm + head * head_dim : k_norm + (head - q_heads) * head_dim;
  const float* angles = rope + row * rope_stride + column;
  float first_gain[8], second_gain[8], cosine[8], sine[8], first[8], second[8], left[8], right[8];
  load8(gain + column, first_gain);
  load8(gain + half + column, second_gain);
  load8(angles, cosine);
  load8(angles + half, sine);
  const size_t at = rows ? rows[row] : row;
  pdl_wait();
  const bf16* source = qkv + row * qkv_stride;
  load8(source + head * head_dim + column, first);
  load8(source + head * head_dim + half + column, second);
  const bf16* values = source + (q_heads + kv_heads) * head_dim;
  for (int i = item; i < 2 * kv_heads * vectors; i += blockDim.x) {  // copied as they are
    *reinterpret_cast<uint4*>(v + at * v_stride + i * 8) = *reinterpret_cast<const uint4*>(values + i * 8);
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += first[i] * first[i] + second[i] * second[i];
  squares = warp_sum(squares);
  if (item % 32 == 0) slots[item / 32] = squares;
  __syncthreads();
  const int of_queries = q_heads * vectors / 32, from = of_q ? 0 : of_queries;
  const int to = of_q ? of_queries : static_cast<int>(blockDim.x) / 32;
  float sum = 0.0f;
  for (int warp = from; warp < to; ++warp) sum += slots[warp];
  const float scale = rsqrtf(sum / ((of_q ? q_heads : kv_heads) * head_dim) + eps);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = first[i] * (scale * first_gain[i]), b = second[i] * (scale * second_gain[i]);
    left[i] = a * cosine[i] - b * sine[i];
    right[i] = b * cosine[i] + a * sine[i];
  }
  bf16* target = of_q ? q + row * q_stride + head * head_dim
                      : k + at * k_stride + (head - q_heads) * head_dim;
  store8(target + column, left);
  store8(target + half + column, right);
}
