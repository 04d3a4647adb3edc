// attention_shared_kv: softmax(scale q k^T) v where all query heads share one key and value head
// q [M, H, d] bf16, k, v [N, d] bf16, out [M, H d] bf16, or E4M3 with a scale; rows q_stride, kv_stride, out_stride
// elements apart, heads side by side. Query rows and heads are one list of M H rows of d.
// Keys j with prefix_length[0] <= j < prefix_rows are hidden: masked, and never read.
// float32 scores, online softmax and sums; probabilities are rounded to bf16 for the second product
// needs d = 256, 16-byte aligned rows; grid ceil(M H / 64), 256 threads: four warps of 16 rows on
// the even and four on the odd halves of each block of 64 keys, joined at the end
// bound: 4 M H N d flop on mma.sync
// source of the online softmax: arXiv 2205.14135
#include "../common/activation.cuh"
#include "../common/mma.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/vector.cuh"

namespace flashrt {
namespace shared_kv {

constexpr int kDim = 256, kRows = 64, kKeys = 64, kThreads = 256, kStages = 2;
constexpr int kPitch = kDim + 8;  // elements; 16 bytes of padding keep ldmatrix free of conflicts
constexpr int kGroupKeys = kKeys / 2;

struct Shared {
  bf16 q[kRows][kPitch];
  struct {
    bf16 k[kKeys][kPitch];
    bf16 v[kKeys][kPitch];
  } stage[kStages];
};

struct Args {
  const bf16 *q, *k, *v;
  int rows, heads, keys, prefix_length, prefix_rows, q_stride, kv_stride, out_stride;
  float scale_log2;

  __device__ __forceinline__ bool visible(int key) const {
    return key < keys && (key < prefix_length || key >= prefix_rows);
  }
};

struct State {
  float o[kDim / 8][4];
  float top[2], sum[2];
};

__device__ __forceinline__ void fetch_keys(Shared& tile, const Args& args, int stage, int first) {
  for (int i = threadIdx.x; i < kKeys * kDim / 8; i += kThreads) {
    const int row = i / (kDim / 8), column = i % (kDim / 8) * 8, key = first + row;
    const bool keep = args.visible(key);
    const size_t offset = keep ? static_cast<size_t>(key) * args.kv_stride + column : 0;
    copy16_async(shared_address(&tile.stage[stage].k[row][column]), args.k + offset, keep);
    copy16_async(shared_address(&tile.stage[stage].v[row][column]), args.v + offset, keep);
  }
}

__device__ __forceinline__ void fetch_queries(Shared& tile, const Args& args, int first) {
  for (int i = threadIdx.x; i < kRows * kDim / 8; i += kThreads) {
    const int row = i / (kDim / 8), column = i % (kDim / 8) * 8, at = first + row;
    const bool keep = at < args.rows;
    const size_t offset = keep ? static_cast<size_t>(at / args.heads) * args.q_stride +
                                     at % args.heads * kDim + column
                               : 0;
    copy16_async(shared_address(&tile.q[row][column]), args.q + offset, keep);
  }
}

__device__ __forceinline__ void step(const Shared& tile, const Args& args, State& state,
                                     const uint32_t (&q)[kDim / 16][4], int stage, int first,
                                     int group, int lane) {
  float s[kGroupKeys / 8][4] = {};
  const int base = group * kGroupKeys;
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
#pragma unroll
    for (int n = 0; n < kGroupKeys / 8; n += 2) {
      uint32_t b[4];
      const int key = base + n * 8 + lane / 16 * 8 + lane % 8;
      ldmatrix_x4(b, shared_address(&tile.stage[stage].k[key][k * 16 + lane / 8 % 2 * 8]));
      mma_k16(s[n], q[k], b[0], b[1]);
      mma_k16(s[n + 1], q[k], b[2], b[3]);
    }
  }
  float top[2] = {state.top[0], state.top[1]};
#pragma unroll
  for (int n = 0; n < kGroupKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first + base + n * 8 + lane % 4 * 2 + i % 2;
      s[n][i] = args.visible(key) ? s[n][i] * args.scale_log2 : -INFINITY;
      top[i / 2] = fmaxf(top[i / 2], s[n][i]);
    }
  }
  float shrink[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 1));
    top[row] = fmaxf(top[row], __shfl_xor_sync(0xffffffffu, top[row], 2));
    // A group may have seen no visible key yet; its sums are zero then, whatever they are scaled by.
    const float base_top = top[row] == -INFINITY ? 0.0f : top[row];
    shrink[row] = exp2_flushed(state.top[row] - base_top);
    state.top[row] = top[row];
    top[row] = base_top;
    state.sum[row] *= shrink[row];
  }
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.o[n][i] *= shrink[i / 2];
  }
#pragma unroll
  for (int n = 0; n < kGroupKeys / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[n][i] = exp2_flushed(s[n][i] - top[i / 2]);
      state.sum[i / 2] += s[n][i];
    }
  }
#pragma unroll
  for (int k = 0; k < kGroupKeys / 16; ++k) {
    const uint32_t a[4] = {
        pack2(s[2 * k][0], s[2 * k][1]), pack2(s[2 * k][2], s[2 * k][3]),
        pack2(s[2 * k + 1][0], s[2 * k + 1][1]), pack2(s[2 * k + 1][2], s[2 * k + 1][3])};
    const int key = base + k * 16 + lane % 16;
#pragma unroll
    for (int n = 0; n < kDim / 8; n += 2) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, shared_address(&tile.stage[stage].v[key][n * 8 + lane / 16 * 8]));
      mma_k16(state.o[n], a, b[0], b[1]);
      mma_k16(state.o[n + 1], a, b[2], b[3]);
    }
  }
}

// Where a group leaves the columns that the other one finishes, and what it scaled them by.
struct Join {
  float o[2][4][kDim / 16][4][32];  // group, warp, tile of eight columns, value, lane
  float top[2][4][2][32], sum[2][4][2][32];
};
static_assert(sizeof(Join) <= sizeof(Shared), "the join reuses the tiles");

template <int kGroup, class Out>
__device__ __forceinline__ void join(Join& other, const Args& args, Out* out, float factor,
                                     State& state, int first, int warp, int lane) {
  constexpr int kTiles = kDim / 16, kOther = 1 - kGroup;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 1);
    state.sum[row] += __shfl_xor_sync(0xffffffffu, state.sum[row], 2);
    other.top[kGroup][warp][row][lane] = state.top[row];
    other.sum[kGroup][warp][row][lane] = state.sum[row];
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) other.o[kGroup][warp][n][i][lane] = state.o[kOther * kTiles + n][i];
  }
  __syncthreads();
  float mine[2], theirs[2];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float their_top = other.top[kOther][warp][row][lane];
    const float top = fmaxf(state.top[row], their_top);
    const float base = top == -INFINITY ? 0.0f : top;
    mine[row] = exp2_flushed(state.top[row] - base);
    theirs[row] = exp2_flushed(their_top - base);
    const float sum =
        state.sum[row] * mine[row] + other.sum[kOther][warp][row][lane] * theirs[row];
    mine[row] /= sum;
    theirs[row] /= sum;
  }
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int at = first + warp * 16 + lane / 4 + row * 8;
    if (at >= args.rows) continue;
    Out* target = out + static_cast<size_t>(at / args.heads) * args.out_stride +
                  at % args.heads * kDim + kGroup * kTiles * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float value[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        value[i] = state.o[kGroup * kTiles + n][2 * row + i] * mine[row] +
                   other.o[kOther][warp][n][2 * row + i][lane] * theirs[row];
      }
      store2(target + n * 8, value[0], value[1], factor);
    }
  }
}

template <class Out>
__device__ __forceinline__ void attend(const Args& args, Out* out, float factor) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& tile = *reinterpret_cast<Shared*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, group = threadIdx.x / 128;
  const int first = blockIdx.x * kRows, blocks = (args.keys + kKeys - 1) / kKeys;
  fetch_queries(tile, args, first);
  fetch_keys(tile, args, 0, 0);
  copy_commit();
  State state = {};
  state.top[0] = state.top[1] = -INFINITY;
  uint32_t q[kDim / 16][4];
  for (int block = 0; block < blocks; ++block) {
    if (block + 1 < blocks) fetch_keys(tile, args, (block + 1) % kStages, (block + 1) * kKeys);
    copy_commit();
    copy_wait<1>();
    __syncthreads();
    if (block == 0) {
#pragma unroll
      for (int k = 0; k < kDim / 16; ++k) {
        ldmatrix_x4(q[k], shared_address(&tile.q[warp * 16 + lane % 16][k * 16 + lane / 16 * 8]));
      }
    }
    step(tile, args, state, q, block % kStages, block * kKeys, group, lane);
    __syncthreads();
  }
  Join& other = *reinterpret_cast<Join*>(memory);
  if (group == 0) {
    join<0>(other, args, out, factor, state, first, warp, lane);
  } else {
    join<1>(other, args, out, factor, state, first, warp, lane);
  }
}

}  // namespace shared_kv
}  // namespace flashrt

#define FLASHRT_SHARED_KV(name, Out)                                                               \
  extern "C" __global__ void __launch_bounds__(256, 1)                                             \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v, Out* out,       \
           const float* out_scale, const int* prefix_length, int rows, int heads, int keys,        \
           int prefix_rows, int q_stride, int kv_stride, int out_stride, float scale) {            \
    flashrt::pdl_trigger();                                                                        \
    const float factor = flashrt::store_factor<Out>(out_scale);                                    \
    flashrt::pdl_wait();                                                                           \
    const int visible = prefix_length ? *prefix_length : prefix_rows;                              \
    flashrt::shared_kv::attend({q, k, v, rows, heads, keys, visible, prefix_rows, q_stride,        \
                                kv_stride, out_stride, scale * 1.4426950408889634f},               \
                               out, factor);                                                       \
  }

FLASHRT_SHARED_KV(attention_shared_kv_d256_bf16, flashrt::bf16)
FLASHRT_SHARED_KV(attention_shared_kv_d256_fp8, flashrt::e4m3)
