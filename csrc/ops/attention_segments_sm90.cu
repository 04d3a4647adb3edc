// attention_segments: softmax(scale q k^T) v inside runs of 256 rows, one head and 64 queries a block (sm_90a)
// In the entries named _turned rope [R, d] float32 (cosines, then sines) turns q and k first, as in
// qkv_rope_kv, with one rounding.
// q, k, v [R, H, d] bf16 (rows `stride` elements apart, heads side by side: the three parts of packed q|k|v
// rows), also as tile maps of 64 x 64 values (128-byte swizzle); out [R, H d] bf16, or E4M3 with a scale.
//
// The four blocks of a cluster have the queries of one run and head. Each fetches 64 keys and values and
// sends them to all four; in the entries named _turned it turns its own 64 rows of q and of k and pushes the
// latter. In a block two warpgroups have 128 keys each, so that all scores fit the registers and the softmax
// needs one pass, and join at the end. Columns from 64 on go beside the tiles, in rows of 16 bytes, and
// through products of single warps.
// float32 scores, softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 64 or 72, runs of 256 rows, 16-byte aligned rows; grid (4, H, runs), clusters of 4, 256 threads
// bound: 256 R H exponentials, 4 R 256 H d flop, 4 R H d * 2 bytes
#include "../common/activation.cuh"
#include "../common/cluster.cuh"
#include "../common/memory.cuh"
#include "../common/mma.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/stream.cuh"
#include "../common/tile_copy.cuh"
#include "../common/vector.cuh"
#include "../common/wgmma.cuh"

namespace flashrt {
namespace segments_sm90 {

constexpr int kKeys = 256, kRows = 64, kThreads = 256, kShare = 4;
constexpr int kGroups = 2, kOwnKeys = kKeys / kGroups;  // warpgroups, and keys of one
constexpr int kTileBytes = kRows * 128;                 // 64 rows of 64 values
constexpr int kGroupBytes = kOwnKeys * 128;
constexpr int kPitch = 72;  // floats of a row of partial sums: no bank conflicts

// Where things lie in shared memory. Partial sums take the place of queries and keys.
constexpr int kQueries = 0, kKeysAt = kQueries + kTileBytes, kValues = kKeysAt + kShare * kTileBytes;
constexpr int kStats = kValues + kShare * kTileBytes;
constexpr int kBarriers = kStats + kGroups * kRows * 8;  // of queries, and of each warpgroup's keys and values
constexpr int kQueryTails = kBarriers + (1 + 2 * kGroups) * 8 + 8;
constexpr int kKeyTails = kQueryTails + kRows * 16, kValueTails = kKeyTails + kKeys * 16;
template <int kDim>
constexpr int kBytes = kDim == 64 ? kQueryTails : kValueTails + kKeys * 16;
static_assert(kGroups * kRows * kPitch * 4 <= kValues, "partial sums fit");
static_assert(kQueryTails % 16 == 0, "rows of 16 bytes");
static_assert(kBytes<64> == 74800 && kBytes<72> == 84016, "as the launcher has it");

#ifdef FLASHRT_SM90A

struct Args {
  const bf16 *q, *k, *v;
  const float* rope;
  int stride, rope_stride;
};

__device__ __forceinline__ uint64_t* barrier_at(int index) {
  return reinterpret_cast<uint64_t*>(dynamic_shared() + kBarriers) + index;
}
__device__ __forceinline__ uint64_t* queries_barrier() { return barrier_at(0); }
__device__ __forceinline__ uint64_t* keys_barrier(int group) { return barrier_at(1 + group); }
__device__ __forceinline__ uint64_t* values_barrier(int group) { return barrier_at(1 + kGroups + group); }

// A quarter of keys or values, into all blocks.
__device__ __forceinline__ void send(const CUtensorMap& map, int to, uint64_t* barrier, int column, int row) {
  copy_tile_to(map, shared_address(dynamic_shared()) + to + cluster_rank() * kTileBytes,
               shared_address(barrier), column, row, (1 << kShare) - 1);
}

// Columns from 64 on.
__device__ __forceinline__ void fetch_tails(int to, const bf16* from, int rows, int stride) {
  for (int row = threadIdx.x; row < rows; row += kThreads) {
    copy16_async(shared_address(dynamic_shared()) + to + row * 16,
                 from + static_cast<size_t>(row) * stride + 64);
  }
}

// What a thread turns: eight columns of a row of q and of k, and their partners half a head further.
struct Turn {
  float cosine[8], sine[8];
  uint4 q[2] = {}, k[2] = {};

  __device__ __forceinline__ static int row() { return threadIdx.x / 4; }
  __device__ __forceinline__ static int column() { return threadIdx.x % 4 * 8; }

  __device__ __forceinline__ void load_angles(const float* rope, int stride) {
    const float* angles = rope + static_cast<size_t>(row()) * stride + column();
    load8(angles, cosine);
    load8(angles + 32, sine);
  }
  __device__ __forceinline__ void load(const Args& args, size_t first_row, int head) {
    const size_t at = (first_row + row()) * args.stride + head + column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      load_fresh(q[half], args.q + at + half * 32, true);
      load_fresh(k[half], args.k + at + half * 32, true);
    }
  }
  __device__ __forceinline__ void turn(uint4 (&both)[2]) const {
    const uint32_t low[4] = {both[0].x, both[0].y, both[0].z, both[0].w};
    const uint32_t high[4] = {both[1].x, both[1].y, both[1].z, both[1].w};
    uint32_t left[4], right[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 a = unpack2(low[i]), b = unpack2(high[i]);
      left[i] = pack2(a.x * cosine[2 * i] - b.x * sine[2 * i],
                      a.y * cosine[2 * i + 1] - b.y * sine[2 * i + 1]);
      right[i] = pack2(b.x * cosine[2 * i] + a.x * sine[2 * i],
                       b.y * cosine[2 * i + 1] + a.y * sine[2 * i + 1]);
    }
    both[0] = {left[0], left[1], left[2], left[3]};
    both[1] = {right[0], right[1], right[2], right[3]};
  }
  // Queries stay here, keys go to all blocks, into the places that a tile map would give them.
  __device__ __forceinline__ void store() {
    turn(k);
    const uint32_t rank = cluster_rank();
    const int place = row() * 128;
    int at[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      at[half] = place + ((column() / 8 + half * 4) ^ row() % 8) * 16;
    }
#pragma unroll
    for (int to = 0; to < kShare; ++to) {
      const uint32_t memory = remote_address(dynamic_shared(), to);
      const uint32_t barrier = memory + kBarriers + (1 + rank / (kShare / kGroups)) * 8;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 bits = {__uint_as_float(k[half].x), __uint_as_float(k[half].y),
                             __uint_as_float(k[half].z), __uint_as_float(k[half].w)};
        push(memory + kKeysAt + rank * kTileBytes + at[half], barrier, bits);
      }
    }
    turn(q);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint4*>(dynamic_shared() + kQueries + at[half]) = q[half];
    }
  }
};

__device__ __forceinline__ float (&four(float* s, int n))[4] {
  return *reinterpret_cast<float(*)[4]>(s + 4 * n);
}

// scores [64 rows, 128 keys] of a warpgroup
template <int kDim>
__device__ __forceinline__ void score(float (&s)[kOwnKeys / 2], int group, int warp, int lane) {
  const uint32_t memory = shared_address(dynamic_shared());
  if constexpr (kDim > 64) {
    uint32_t a[2];
    ldmatrix_x2(a, memory + kQueryTails + (warp * 16 + lane % 16) * 16);
#pragma unroll
    for (int n = 0; n < kOwnKeys / 8; n += 4) {
      uint32_t b[4];
      ldmatrix_x4(b, memory + kKeyTails + (group * kOwnKeys + n * 8 + lane) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) s[4 * (n + i) + j] = 0.0f;
        mma_k8(four(s, n + i), a[0], a[1], b[i]);
      }
    }
  }
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    Wgmma<kOwnKeys>::run(s, wgmma_step(wgmma_tile(memory + kQueries), k),
                         wgmma_step(wgmma_tile(memory + kKeysAt + group * kGroupBytes), k),
                         kDim > 64 || k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// Turns scores into probabilities times their row sum; returns of this lane's two rows the sums over its
// keys, and in `top` their largest scores.
__device__ __forceinline__ float2 exponentiate(float (&s)[kOwnKeys / 2], float (&top)[2], float scale_log2) {
  float sum[2] = {};
  top[0] = top[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < kOwnKeys / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2)) * scale_log2;
  }
#pragma unroll
  for (int i = 0; i < kOwnKeys / 2; ++i) {
    s[i] = exp2_flushed(s[i] * scale_log2 - top[i / 2 % 2]);
    sum[i / 2 % 2] += s[i];
  }
  return make_float2(sum[0], sum[1]);
}

// o [64 rows, d] = p v of a warpgroup; columns from 64 on in `tail`
template <int kDim>
__device__ __forceinline__ void mix(const float (&s)[kOwnKeys / 2], float (&o)[32], float (&tail)[4],
                                    int group, int lane) {
  const uint32_t memory = shared_address(dynamic_shared());
  uint32_t p[kOwnKeys / 16][4];
#pragma unroll
  for (int k = 0; k < kOwnKeys / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
  if constexpr (kDim > 64) {
#pragma unroll
    for (int k = 0; k < kOwnKeys / 16; k += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, memory + kValueTails + (group * kOwnKeys + k * 16 + lane) * 16);
      mma_k16(tail, p[k], b[0], b[1]);
      mma_k16(tail, p[k + 1], b[2], b[3]);
    }
  }
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kOwnKeys / 16; ++k) {
    const uint32_t rows = memory + kValues + group * kGroupBytes + k * 2048;
    WgmmaRegisters<64>::run<1>(o, p[k], wgmma_columns(rows, kTileBytes), k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

__device__ __forceinline__ float* parts(int group) {
  return reinterpret_cast<float*>(dynamic_shared()) + group * kRows * kPitch;
}
// Of each row the largest score and the sum.
__device__ __forceinline__ float2* stats(int group) {
  return reinterpret_cast<float2*>(dynamic_shared() + kStats) + group * kRows;
}

// This warpgroup's sums.
template <int kDim>
__device__ __forceinline__ void leave(const float (&o)[32], const float (&tail)[4], const float (&top)[2],
                                      float2 sum, int group, int warp, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + half * 8 + lane / 4;
    float* target = parts(group) + row * kPitch + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      *reinterpret_cast<float2*>(target + n * 8) = {o[4 * n + 2 * half], o[4 * n + 2 * half + 1]};
    }
    if constexpr (kDim > 64) {
      *reinterpret_cast<float2*>(target + 64) = {tail[2 * half], tail[2 * half + 1]};
    }
    float all = half ? sum.y : sum.x;
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    if (lane % 4 == 0) stats(group)[row] = {top[half], all};
  }
}

template <int kDim, class Out>
__device__ __forceinline__ void finish(Out* out, int out_stride, float factor) {
  constexpr int kColumns = kDim / 8;
  for (int i = threadIdx.x; i < kRows * kColumns; i += kThreads) {
    const int row = i / kColumns, column = i % kColumns * 8;
    const float2 first = stats(0)[row], second = stats(1)[row];
    const float top = fmaxf(first.x, second.x);
    float share[2] = {exp2_fast(first.x - top), exp2_fast(second.x - top)};
    const float inverse = 1.0f / (share[0] * first.y + share[1] * second.y);
    float a[8], b[8], v[8];
    load8(parts(0) + row * kPitch + column, a);
    load8(parts(1) + row * kPitch + column, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = a[j] * (share[0] * inverse) + b[j] * (share[1] * inverse);
    store8(out + static_cast<size_t>(row) * out_stride + column, v, factor);
  }
}

template <int kDim, bool kTurned>
__device__ __forceinline__ void begin(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                      const Args& args, size_t first_row, int head) {
  const int row = static_cast<int>(first_row), own = cluster_rank() / (kShare / kGroups);
  const size_t run = first_row / kKeys * kKeys;
  Turn turn;
  if constexpr (kTurned) turn.load_angles(args.rope + first_row * args.rope_stride, args.rope_stride);
  pdl_wait();
  if constexpr (kTurned) turn.load(args, first_row, head);
  cluster_wait();  // nobody is sent anything before it is there
  if (threadIdx.x == 0) {
    if constexpr (!kTurned) {
      copy_tile(q, shared_address(dynamic_shared()) + kQueries, shared_address(queries_barrier()), head, row);
      send(k, kKeysAt, keys_barrier(own), head, row);
    }
    send(v, kValues, values_barrier(own), head, row);
  }
  if constexpr (kDim > 64) {
    fetch_tails(kQueryTails, args.q + first_row * args.stride + head, kRows, args.stride);
    fetch_tails(kKeyTails, args.k + run * args.stride + head, kKeys, args.stride);
    copy_commit();
    fetch_tails(kValueTails, args.v + run * args.stride + head, kKeys, args.stride);
    copy_commit();
  }
  if constexpr (kTurned) {
    turn.store();
    publish_shared();
    __syncthreads();
  }
}

template <int kDim, bool kTurned, class Out>
__device__ __forceinline__ void attend(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                       const Args& args, Out* out, const float* out_scale, int out_stride,
                                       float scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const size_t first_row = static_cast<size_t>(blockIdx.z) * kKeys + blockIdx.x * kRows;
  const int head = blockIdx.y * kDim;
  if (threadIdx.x == 0) {
    if constexpr (!kTurned) {
      prefetch_map(q);
      prefetch_map(k);
    }
    prefetch_map(v);
    expect_bytes(queries_barrier(), kTileBytes);
    for (int i = 0; i < kGroups; ++i) {
      expect_bytes(keys_barrier(i), kGroupBytes);
      expect_bytes(values_barrier(i), kGroupBytes);
    }
  }
  __syncthreads();
  cluster_arrive_relaxed();
  const float factor = store_factor<Out>(out_scale);
  begin<kDim, kTurned>(q, k, v, args, first_row, head);
  if constexpr (kDim > 64) {
    copy_wait<1>();
    __syncthreads();
  }
  if constexpr (!kTurned) wait_bytes(queries_barrier());
  wait_bytes(keys_barrier(group));
  if constexpr (kTurned) publish_shared();  // what was pushed, to the products
  float s[kOwnKeys / 2], top[2];
  score<kDim>(s, group, warp, lane);
  const float2 sum = exponentiate(s, top, scale * 1.4426950408889634f);
  copy_wait<0>();
  __syncthreads();  // nobody reads queries and keys any more
  wait_bytes(values_barrier(group));
  float o[32], tail[4] = {};
  mix<kDim>(s, o, tail, group, lane);
  leave<kDim>(o, tail, top, sum, group, warp, lane);
  __syncthreads();
  finish<kDim>(out + first_row * out_stride + head, out_stride, factor);
}

#endif

}  // namespace segments_sm90
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_SEGMENTS_SM90(name, kDim, kTurned, Out)                                            \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,   \
           const __grid_constant__ CUtensorMap v_map, const flashrt::bf16* q,                      \
           const flashrt::bf16* k, const flashrt::bf16* v, const float* rope, Out* out,            \
           const float* out_scale, int stride, int rope_stride, int out_stride, float scale) {     \
    flashrt::pdl_trigger();                                                                        \
    flashrt::segments_sm90::attend<kDim, kTurned>(q_map, k_map, v_map,                             \
                                                  {q, k, v, rope, stride, rope_stride}, out,       \
                                                  out_scale, out_stride, scale);                   \
  }

FLASHRT_SEGMENTS_SM90(attention_segments_d64_bf16_sm90, 64, false, flashrt::bf16)
FLASHRT_SEGMENTS_SM90(attention_segments_d64_fp8_sm90, 64, false, flashrt::e4m3)
FLASHRT_SEGMENTS_SM90(attention_segments_d72_bf16_sm90, 72, false, flashrt::bf16)
FLASHRT_SEGMENTS_SM90(attention_segments_d72_fp8_sm90, 72, false, flashrt::e4m3)
FLASHRT_SEGMENTS_SM90(attention_segments_turned_d64_bf16_sm90, 64, true, flashrt::bf16)
FLASHRT_SEGMENTS_SM90(attention_segments_turned_d64_fp8_sm90, 64, true, flashrt::e4m3)
#endif
