// attention_segments: softmax(scale q k^T) v inside runs of 256 rows, 64 queries of one head a block (sm_90a)
// In the entries named _turned rope [R, d] float32 (cosines, then sines) turns q and k first, as in
// qkv_rope_kv, with one rounding.
// q, k, v [R, H, d] bf16, rows `stride` elements apart, heads side by side (the three parts of packed q|k|v
// rows), also as tile maps of 64 columns (128-byte swizzle), 64 rows of q and 128 of k and v; out [R, H d]
// bf16, or E4M3 with a scale.
//
// The two blocks of a cluster have 64 queries each of one run and head. Each fetches one half of the keys and
// values and sends it to both; in the entries named _turned it turns its half of the keys, of which its
// queries have the places, and pushes it to the other. In a block two warpgroups have one half of the keys
// each, so that all scores fit the registers and the softmax needs one pass, and join at the end. Columns
// from 64 on lie beside the tiles in rows of 16 bytes, and go through products of single warps.
// float32 scores, softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 64 or 72, runs of 256 rows, 16-byte aligned rows; grid (4, H, runs), clusters of 2, 256 threads
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

constexpr int kKeys = 256, kRows = 64, kThreads = 256;
constexpr int kHalf = kKeys / 2;  // keys of a warpgroup, and those that a block fetches
constexpr int kTileBytes = kRows * 128, kHalfBytes = kHalf * 128;  // of rows of 64 values
constexpr int kPitch = 72;  // floats of a row of partial sums: no bank conflicts

// Where things lie in shared memory. Partial sums take the place of queries and keys.
constexpr int kQueries = 0, kKeysAt = kQueries + kTileBytes, kValues = kKeysAt + 2 * kHalfBytes;
constexpr int kQueryTails = kValues + 2 * kHalfBytes, kKeyTails = kQueryTails + kRows * 16;
constexpr int kValueTails = kKeyTails + kKeys * 16;
template <int kDim>
constexpr int kStats = kDim > 64 ? kValueTails + kKeys * 16 : kQueryTails;
template <int kDim>
constexpr int kBarriers = kStats<kDim> + 2 * kRows * 8;  // of queries, keys and values, these a half each
template <int kDim>
constexpr int kBytes = kBarriers<kDim> + 5 * 8;
static_assert(2 * kRows * kPitch * 4 <= kValues, "partial sums fit");
static_assert(kBytes<64> == 74792 && kBytes<72> == 84008, "as the launcher has it");

#ifdef FLASHRT_SM90A

struct Args {
  const bf16 *q, *k, *v;
  const float* rope;
  int stride, rope_stride;
};

__device__ __forceinline__ uint32_t memory_at(int place) { return shared_address(dynamic_shared()) + place; }
template <int kDim>
__device__ __forceinline__ uint32_t queries_barrier() {
  return memory_at(kBarriers<kDim>);
}
template <int kDim>
__device__ __forceinline__ uint32_t keys_barrier(int half) {
  return memory_at(kBarriers<kDim> + 8 + half * 8);
}
template <int kDim>
__device__ __forceinline__ uint32_t values_barrier(int half) {
  return memory_at(kBarriers<kDim> + 24 + half * 8);
}

// By one thread, before all meet. Keys that are turned come by themselves, those of this block aside.
template <int kDim, bool kTurned>
__device__ __forceinline__ void init() {
  for (int i = 0; i < 5; ++i) barrier_init(memory_at(kBarriers<kDim> + i * 8), 1);
  barrier_init_fence();
  if (!kTurned) barrier_expect(queries_barrier<kDim>(), kTileBytes);
  for (int half = 0; half < 2; ++half) {
    barrier_expect(keys_barrier<kDim>(half), kHalfBytes);
    barrier_expect(values_barrier<kDim>(half), kHalfBytes);
  }
}

// This block's half of keys or values, into both.
__device__ __forceinline__ void send(const CUtensorMap& map, int to, uint32_t barrier, int column, int row) {
  const int half = static_cast<int>(cluster_rank());
  copy_tile_to(map, memory_at(to + half * kHalfBytes), barrier, column, row, 3);
}

// Columns from 64 on, by all warps but the first, which has copies of tiles to ask for.
__device__ __forceinline__ void fetch_tails(int to, const bf16* from, int rows, int stride) {
  for (int row = static_cast<int>(threadIdx.x) - 32; row < rows; row += kThreads - 32) {
    if (row >= 0) copy16_async(memory_at(to + row * 16), from + static_cast<size_t>(row) * stride + 64);
  }
}

// Eight columns of a row that turns, and their partners half a head further.
struct Pair {
  uint4 low = {}, high = {};

  __device__ __forceinline__ void load(const bf16* p) {
    load_fresh(low, p, true);
    load_fresh(high, p + 32, true);
  }
  __device__ __forceinline__ void turn(const float (&cosine)[8], const float (&sine)[8]) {
    uint32_t a[4] = {low.x, low.y, low.z, low.w}, b[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = unpack2(a[i]), y = unpack2(b[i]);
      const float2 c = {cosine[2 * i], cosine[2 * i + 1]}, s = {sine[2 * i], sine[2 * i + 1]};
      a[i] = pack2(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y);
      b[i] = pack2(y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y);
    }
    low = {a[0], a[1], a[2], a[3]};
    high = {b[0], b[1], b[2], b[3]};
  }
  __device__ __forceinline__ void store(int low_at, int high_at) const {
    *reinterpret_cast<uint4*>(dynamic_shared() + low_at) = low;
    *reinterpret_cast<uint4*>(dynamic_shared() + high_at) = high;
  }
};

// What a thread turns: of this block's half of the keys rows row() and 64 further, and the query that has
// the place of one of the two.
struct Turn {
  float cosine[2][8], sine[2][8];
  Pair keys[2], query;

  __device__ __forceinline__ static int row() { return threadIdx.x / 4; }
  __device__ __forceinline__ static int column() { return threadIdx.x % 4 * 8; }

  __device__ __forceinline__ void load_angles(const float* rope, int stride) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* angles = rope + static_cast<size_t>(row() + i * 64) * stride + column();
      load8(angles, cosine[i]);
      load8(angles + 32, sine[i]);
    }
  }
  // q and k: where this block's half begins, of one head.
  __device__ __forceinline__ void load(const bf16* q, const bf16* k, int stride, int own) {
    const size_t at = static_cast<size_t>(row()) * stride + column();
    keys[0].load(k + at);
    keys[1].load(k + at + static_cast<size_t>(64) * stride);
    query.load(q + at + static_cast<size_t>(own * 64) * stride);
  }
  // Into the places that a tile map would give them: keys of both blocks, queries of this one.
  __device__ __forceinline__ void store(int own) {
    const int half = static_cast<int>(cluster_rank());
    const int low = row() * 128 + (column() / 8 ^ row() % 8) * 16, high = low ^ 64;
    const int place = kKeysAt + half * kHalfBytes;
    const uint32_t other = remote_address(dynamic_shared(), half ^ 1);
    const uint32_t barrier = other + kBarriers<64> + 8 + half * 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      keys[i].turn(cosine[i], sine[i]);
      push(other + place + i * kTileBytes + low, barrier, bits(keys[i].low));
      push(other + place + i * kTileBytes + high, barrier, bits(keys[i].high));
      keys[i].store(place + i * kTileBytes + low, place + i * kTileBytes + high);
    }
    if (own == 0) {
      query.turn(cosine[0], sine[0]);
    } else {
      query.turn(cosine[1], sine[1]);
    }
    query.store(kQueries + low, kQueries + high);
  }

 private:
  __device__ __forceinline__ static float4 bits(const uint4& v) {
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
  }
};

__device__ __forceinline__ float (&four(float* s, int n))[4] {
  return *reinterpret_cast<float(*)[4]>(s + 4 * n);
}

// scores [64 rows, 128 keys] of a warpgroup
template <int kDim>
__device__ __forceinline__ void score(float (&s)[kHalf / 2], int group, int warp, int lane) {
  const uint32_t memory = shared_address(dynamic_shared());
  if constexpr (kDim > 64) {
    uint32_t a[2];
    ldmatrix_x2(a, memory + kQueryTails + (warp * 16 + lane % 16) * 16);
#pragma unroll
    for (int n = 0; n < kHalf / 8; n += 4) {
      uint32_t b[4];
      ldmatrix_x4(b, memory + kKeyTails + (group * kHalf + n * 8 + lane) * 16);
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
    Wgmma<kHalf>::run(s, wgmma_step(wgmma_tile(memory + kQueries), k),
                         wgmma_step(wgmma_tile(memory + kKeysAt + group * kHalfBytes), k),
                         kDim > 64 || k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

// Turns scores into probabilities times their row sum; returns of this lane's two rows the sums over its
// keys, and in `top` their largest scores.
__device__ __forceinline__ float2 exponentiate(float (&s)[kHalf / 2], float (&top)[2], float scale_log2) {
  float sum[2] = {};
  top[0] = top[1] = -INFINITY;
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) top[i / 2 % 2] = fmaxf(top[i / 2 % 2], s[i]);
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2)) * scale_log2;
  }
#pragma unroll
  for (int i = 0; i < kHalf / 2; ++i) {
    s[i] = exp2_flushed(s[i] * scale_log2 - top[i / 2 % 2]);
    sum[i / 2 % 2] += s[i];
  }
  return make_float2(sum[0], sum[1]);
}

// o [64 rows, d] = p v of a warpgroup; columns from 64 on in `tail`
template <int kDim>
__device__ __forceinline__ void mix(const float (&s)[kHalf / 2], float (&o)[32], float (&tail)[4],
                                    int group, int lane) {
  const uint32_t memory = shared_address(dynamic_shared());
  uint32_t p[kHalf / 16][4];
#pragma unroll
  for (int k = 0; k < kHalf / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack2(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
  if constexpr (kDim > 64) {
#pragma unroll
    for (int k = 0; k < kHalf / 16; k += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, memory + kValueTails + (group * kHalf + k * 16 + lane) * 16);
      mma_k16(tail, p[k], b[0], b[1]);
      mma_k16(tail, p[k + 1], b[2], b[3]);
    }
  }
  wgmma_begin();
#pragma unroll
  for (int k = 0; k < kHalf / 16; ++k) {
    const uint32_t rows = memory + kValues + group * kHalfBytes + k * 2048;
    WgmmaRegisters<64>::run<1>(o, p[k], wgmma_columns(rows, kHalfBytes), k > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
}

__device__ __forceinline__ float* parts(int group) {
  return reinterpret_cast<float*>(dynamic_shared()) + group * kRows * kPitch;
}
// Of each row the largest score and the sum.
template <int kDim>
__device__ __forceinline__ float2* stats(int group) {
  return reinterpret_cast<float2*>(dynamic_shared() + kStats<kDim>) + group * kRows;
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
    if (lane % 4 == 0) stats<kDim>(group)[row] = {top[half], all};
  }
}

template <int kDim, class Out>
__device__ __forceinline__ void finish(Out* out, int out_stride, float factor) {
  constexpr int kColumns = kDim / 8, kItems = kRows * kColumns;
#pragma unroll
  for (int first = 0; first < kItems; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x), row = i / kColumns, column = i % kColumns * 8;
    if (first + kThreads > kItems && i >= kItems) continue;
    const float2 one = stats<kDim>(0)[row], other = stats<kDim>(1)[row];
    const float top = fmaxf(one.x, other.x), share = exp2_fast(one.x - top), rest = exp2_fast(other.x - top);
    const float inverse = reciprocal_flushed(share * one.y + rest * other.y);
    float a[8], b[8], v[8];
    load8(parts(0) + row * kPitch + column, a);
    load8(parts(1) + row * kPitch + column, b);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = a[j] * (share * inverse) + b[j] * (rest * inverse);
    store8(out + static_cast<size_t>(row) * out_stride + column, v, factor);
  }
}

// Everything under way: until queries and this warpgroup's keys are there. `half` is this block's of the
// keys, `own` which part of it its queries have the places of.
template <int kDim, bool kTurned>
__device__ __forceinline__ void begin(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                      const Args& args, int half, int own, int group) {
  const int run = blockIdx.z * kKeys, first = run + half * kHalf, head = blockIdx.y * kDim;
  const size_t at = static_cast<size_t>(first) * args.stride + head;
  Turn turn;
  if constexpr (kTurned) {
    turn.load_angles(args.rope + static_cast<size_t>(first) * args.rope_stride, args.rope_stride);
  }
  pdl_wait();
  if constexpr (kTurned) turn.load(args.q + at, args.k + at, args.stride, own);
  cluster_wait();  // nobody is sent anything before it is there
  if (threadIdx.x == 0) {
    if constexpr (!kTurned) {
      copy_tile(q, memory_at(kQueries), queries_barrier<kDim>(), head, first + own * kRows);
      send(k, kKeysAt, keys_barrier<kDim>(half), head, first);
    }
    send(v, kValues, values_barrier<kDim>(half), head, first);
  }
  if constexpr (kDim > 64) {
    const size_t keys = static_cast<size_t>(run) * args.stride + head;
    const size_t queries = at + static_cast<size_t>(own * kRows) * args.stride;
    fetch_tails(kQueryTails, args.q + queries, kRows, args.stride);
    fetch_tails(kKeyTails, args.k + keys, kKeys, args.stride);
    copy_commit();
    fetch_tails(kValueTails, args.v + keys, kKeys, args.stride);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
  }
  if constexpr (kTurned) {
    turn.store(own);
    publish_shared();
    __syncthreads();
    if (group == half) return;
    wait_bytes(reinterpret_cast<uint64_t*>(dynamic_shared() + kBarriers<kDim> + 8 + group * 8));
    publish_shared();  // what was pushed, to the products
  } else {
    barrier_wait(queries_barrier<kDim>(), 0);
    barrier_wait(keys_barrier<kDim>(group), 0);
  }
}

template <int kDim, bool kTurned, class Out>
__device__ __forceinline__ void attend(const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                       const Args& args, Out* out, const float* out_scale, int out_stride,
                                       float scale) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const int half = static_cast<int>(cluster_rank()), own = blockIdx.x / 2;
  if (threadIdx.x == 0) init<kDim, kTurned>();
  if (threadIdx.x == 32) {
    if constexpr (!kTurned) {
      prefetch_map(q);
      prefetch_map(k);
    }
    prefetch_map(v);
  }
  __syncthreads();
  cluster_arrive_relaxed();
  const float factor = store_factor<Out>(out_scale);
  begin<kDim, kTurned>(q, k, v, args, half, own, group);
  float s[kHalf / 2], top[2];
  score<kDim>(s, group, warp, lane);
  const float2 sum = exponentiate(s, top, scale * 1.4426950408889634f);
  if constexpr (kDim > 64) {
    copy_wait<0>();
    __syncthreads();
  }
  barrier_wait(values_barrier<kDim>(group), 0);
  float o[32], tail[4] = {};
  mix<kDim>(s, o, tail, group, lane);
  if constexpr (kDim == 64) __syncthreads();  // nobody reads queries and keys any more
  leave<kDim>(o, tail, top, sum, group, warp, lane);
  __syncthreads();
  const size_t row = blockIdx.z * kKeys + half * kHalf + own * kRows;
  finish<kDim>(out + row * out_stride + blockIdx.y * kDim, out_stride, factor);
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
