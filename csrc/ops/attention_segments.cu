// attention_segments: softmax(scale q k^T) v inside runs of 256 rows, one head and 64 queries a block
// In the entries named _turned rope [R, d] float32 (cosines, then sines) turns q and k first, as in
// qkv_rope_kv: in shared memory, with one rounding.
// q, k, v [R, H, d] bf16 (rows `stride` elements apart, heads side by side: the three parts of packed
// q|k|v rows); out [R, H d] bf16, or E4M3 with a scale. A row sees the 256 keys of its own run, so all scores of 16 rows
// fit the registers of a warp and the softmax needs one pass.
// float32 scores, softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 64 or 72, runs of 256 rows, 16-byte aligned rows; grid (4, H, runs), 128 threads
// bound: 4 R 256 H d flop on mma.sync, 4 R H d * 2 bytes
#include "../common/activation.cuh"
#include "../common/mma.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/vector.cuh"

namespace flashrt {
namespace segments {

constexpr int kKeys = 256, kRows = 64, kThreads = 128;

// Rows of kDim values stay 16 bytes apart modulo 128 for odd kDim / 8: no bank conflicts, no padding.
template <int kDim>
constexpr int kPitch = kDim / 8 % 2 ? kDim : kDim + 8;

template <int kDim>
struct Shared {
  bf16 q[kRows][kPitch<kDim>];
  bf16 k[kKeys][kPitch<kDim>];
  bf16 v[kKeys][kPitch<kDim>];
};

// Behind the others, where rows are turned; rows stay 16 bytes apart modulo 128.
template <int kDim>
struct Angles {
  float row[kKeys][kDim + 4];
};

template <int kDim>
__device__ __forceinline__ void fetch_angles(Angles<kDim>& angles, const float* rope, int stride) {
  constexpr int kChunks = kDim / 4;
  for (int i = threadIdx.x; i < kKeys * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    copy16_async(shared_address(&angles.row[row][chunk * 4]),
                 rope + static_cast<size_t>(row) * stride + chunk * 4);
  }
  copy_commit();
}

// Turns all keys and the queries, which are rows first_row on of the run.
template <int kDim>
__device__ __forceinline__ void turn(Shared<kDim>& tile, const Angles<kDim>& angles, int first_row) {
  constexpr int kOctets = kDim / 16;
#pragma unroll 2
  for (int i = threadIdx.x; i < (kRows + kKeys) * kOctets; i += kThreads) {
    const int item = i / kOctets, column = i % kOctets * 8;
    bf16* row = item < kRows ? tile.q[item] : tile.k[item - kRows];
    const float* angle = angles.row[item < kRows ? first_row + item : item - kRows] + column;
    float low[8], high[8], cosine[8], sine[8], left[8], right[8];
    load8(row + column, low);
    load8(row + kDim / 2 + column, high);
    load8(angle, cosine);
    load8(angle + kDim / 2, sine);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      left[j] = low[j] * cosine[j] - high[j] * sine[j];
      right[j] = high[j] * cosine[j] + low[j] * sine[j];
    }
    store8(row + column, left);
    store8(row + kDim / 2 + column, right);
  }
}

template <int kDim>
__device__ __forceinline__ void fetch(bf16* shared, const bf16* global, int rows, int stride) {
  constexpr int kChunks = kDim / 8;
  for (int i = threadIdx.x; i < rows * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    copy16_async(shared_address(shared + row * kPitch<kDim> + chunk * 8),
                 global + static_cast<size_t>(row) * stride + chunk * 8);
  }
}

// scores [16 rows of this warp, 256 keys]
template <int kDim>
__device__ __forceinline__ void score(const Shared<kDim>& tile, float (&s)[kKeys / 8][4], int warp,
                                      int lane) {
#pragma unroll
  for (int k = 0; k + 16 <= kDim; k += 16) {
    uint32_t a[4];
    ldmatrix_x4(a, shared_address(&tile.q[warp * 16 + lane % 16][k + lane / 16 * 8]));
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 2) {
      uint32_t b[4];
      const int key = n * 8 + lane / 16 * 8 + lane % 8;
      ldmatrix_x4(b, shared_address(&tile.k[key][k + lane / 8 % 2 * 8]));
      mma_k16(s[n], a, b[0], b[1]);
      mma_k16(s[n + 1], a, b[2], b[3]);
    }
  }
  if constexpr (kDim % 16 == 8) {
    uint32_t a[2];
    ldmatrix_x2(a, shared_address(&tile.q[warp * 16 + lane % 16][kDim - 8]));
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 4) {
      uint32_t b[4];
      ldmatrix_x4(b, shared_address(&tile.k[n * 8 + lane][kDim - 8]));
#pragma unroll
      for (int i = 0; i < 4; ++i) mma_k8(s[n + i], a[0], a[1], b[i]);
    }
  }
}

// Turns scores into probabilities times their row sum; returns the two row sums of this lane.
__device__ __forceinline__ float2 exponentiate(float (&s)[kKeys / 8][4], float scale_log2) {
  float top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top[i / 2] = fmaxf(top[i / 2], s[n][i]);
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2)) * scale_log2;
  }
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = exp2_flushed(s[n][i] * scale_log2 - top[i / 2]);
      sum[i / 2] += s[n][i];
    }
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 1);
    sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 2);
  }
  return make_float2(sum[0], sum[1]);
}

// o [16 rows, kDim] = p v
template <int kDim>
__device__ __forceinline__ void mix(const Shared<kDim>& tile, const float (&p)[kKeys / 8][4],
                                    float (&o)[kDim / 8][4], int lane) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    const uint32_t a[4] = {
        pack2(p[2 * k][0], p[2 * k][1]), pack2(p[2 * k][2], p[2 * k][3]),
        pack2(p[2 * k + 1][0], p[2 * k + 1][1]), pack2(p[2 * k + 1][2], p[2 * k + 1][3])};
    const int key = k * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n + 1 < kDim / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, shared_address(&tile.v[key][n * 8 + lane / 16 * 8]));
      mma_k16(o[n], a, b[0], b[1]);
      mma_k16(o[n + 1], a, b[2], b[3]);
    }
    if constexpr (kDim % 16 == 8) {
      uint32_t b[2];
      ldmatrix_x2_trans(b, shared_address(&tile.v[key][kDim - 8]));
      mma_k16(o[kDim / 8 - 1], a, b[0], b[1]);
    }
  }
}

template <int kDim, bool kTurned, class Out>
__device__ __forceinline__ void attend(const bf16* q, const bf16* k, const bf16* v, const float* rope,
                                       Out* out, const float* out_scale, int stride, int rope_stride,
                                       int out_stride, float scale) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared<kDim>& tile = *reinterpret_cast<Shared<kDim>*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const size_t first_key = static_cast<size_t>(blockIdx.z) * kKeys;
  const size_t first_row = first_key + blockIdx.x * kRows;
  const int column = blockIdx.y * kDim;
  const float factor = store_factor<Out>(out_scale);
  Angles<kDim>& angles = *reinterpret_cast<Angles<kDim>*>(memory + sizeof(Shared<kDim>));
  if constexpr (kTurned) fetch_angles<kDim>(angles, rope + first_key * rope_stride, rope_stride);
  pdl_wait();
  fetch<kDim>(&tile.q[0][0], q + first_row * stride + column, kRows, stride);
  fetch<kDim>(&tile.k[0][0], k + first_key * stride + column, kKeys, stride);
  copy_commit();
  fetch<kDim>(&tile.v[0][0], v + first_key * stride + column, kKeys, stride);
  copy_commit();
  copy_wait<1>();
  __syncthreads();
  if constexpr (kTurned) {
    turn<kDim>(tile, angles, blockIdx.x * kRows);
    __syncthreads();
  }
  float s[kKeys / 8][4] = {};
  score<kDim>(tile, s, warp, lane);
  const float2 sum = exponentiate(s, scale * 1.4426950408889634f);
  copy_wait<0>();
  __syncthreads();
  float o[kDim / 8][4] = {};
  mix<kDim>(tile, s, o, lane);
  const float inverse[2] = {1.0f / sum.x, 1.0f / sum.y};
  Out* target = out + (first_row + warp * 16 + lane / 4) * out_stride + column + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      store2(target + static_cast<size_t>(row) * 8 * out_stride + n * 8,
             o[n][2 * row] * inverse[row], o[n][2 * row + 1] * inverse[row], factor);
    }
  }
}

}  // namespace segments
}  // namespace flashrt

#define FLASHRT_SEGMENTS(name, kDim, Out)                                                          \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, int stride, int out_stride, float scale) {                      \
    flashrt::pdl_trigger();                                                                        \
    flashrt::segments::attend<kDim, false>(q, k, v, nullptr, out, out_scale, stride, 0,            \
                                           out_stride, scale);                                     \
  }

#define FLASHRT_SEGMENTS_TURNED(name, kDim, Out)                                                   \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v,                 \
           const float* rope, Out* out, const float* out_scale, int stride, int rope_stride,       \
           int out_stride, float scale) {                                                          \
    flashrt::pdl_trigger();                                                                        \
    flashrt::segments::attend<kDim, true>(q, k, v, rope, out, out_scale, stride, rope_stride,      \
                                          out_stride, scale);                                      \
  }

FLASHRT_SEGMENTS(attention_segments_d64_bf16, 64, flashrt::bf16)
FLASHRT_SEGMENTS(attention_segments_d64_fp8, 64, flashrt::e4m3)
FLASHRT_SEGMENTS(attention_segments_d72_bf16, 72, flashrt::bf16)
FLASHRT_SEGMENTS(attention_segments_d72_fp8, 72, flashrt::e4m3)

static_assert(sizeof(flashrt::segments::Shared<64>) == 82944 &&
                  sizeof(flashrt::segments::Angles<64>) == 69632,
              "as the launcher has it");
FLASHRT_SEGMENTS_TURNED(attention_segments_turned_d64_bf16, 64, flashrt::bf16)
FLASHRT_SEGMENTS_TURNED(attention_segments_turned_d64_fp8, 64, flashrt::e4m3)
