// attention_causal_turned: softmax(scale q k^T) v of merged rows, whose heads of q and k are normalised and
// turned on their way
// qkv [M, (H + 2 Hkv) 128] bf16, H / Hkv even; rope [M, 128] float32, cosines of a row's 64 angles, then
// their sines; q_norm, k_norm [128] float32, gains of the RMS norms of a head; out [M, H 128] bf16, or E4M3
// with a scale; strides in elements. Row i sees keys j <= i; tiles of 16 keys behind its own are never read.
// normalised and turned in float32, one rounding to bf16, as qkv_norm_rope_kv; float32 scores, softmax and
// sums; probabilities are rounded to bf16 for the second product
// needs 16-byte aligned rows, M <= 256; grid (ceil(M / 16), H / Hkv / 2, Hkv), 256 threads
// bound: the chain of dependent steps, of it the way of 16 KB a tile of keys and values and their angles
//
// A block has 16 rows of two heads that share their keys, and makes these keys itself: of up to 160 rows
// everything that it needs is under way at once. Each warp has the scores of 16 keys with a softmax of their
// own, and later 16 columns of all values. What goes from warp to warp are probabilities, a sixteenth of what
// sums would be; products with them start from zero, as each tile has a maximum of its own.
#include "../common/head_rows.cuh"
#include "../common/mma.cuh"
#include "../common/numbers.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/reduce.cuh"
#include "../common/stream.cuh"

namespace flashrt {
namespace causal_turned {

constexpr int kDim = 128, kRows = 16, kHeads = 2, kQueries = kRows * kHeads, kMostKeys = 256;
constexpr int kWarps = 8, kThreads = 32 * kWarps, kAtOnce = kThreads / 8;  // rows that turn at once
static_assert(kAtOnce == kQueries && kDim == 16 * kWarps, "queries turn at once; 16 columns a warp");
constexpr int kPitch = kDim + 8, kWeightPitch = kMostKeys + 8;  // elements
static_assert(kPitch / 8 % 2 == 1 && kWeightPitch / 8 % 2 == 1, "no bank conflicts");

// Where things lie in shared memory; values behind the keys, that are as many as rows up to the block's last.
constexpr int kWeights = kQueries * kPitch * 2, kStats = kWeights + kQueries * kWeightPitch * 2;
constexpr int kKeys = kStats + kMostKeys / kRows * kQueries * 8;
static_assert(kKeys == 29696 && 2 * kPitch * 2 == 544, "as the launcher has it");

struct Args {
  const bf16* qkv;
  const float *rope, *q_norm, *k_norm;
  int rows, stride, rope_stride;
  float scale_log2, eps;
};

// Heads of a row: queries, of which a block has two that share a head of keys, then keys, then values.
__device__ __forceinline__ int first_head() { return (blockIdx.z * gridDim.y + blockIdx.y) * kHeads; }
__device__ __forceinline__ int key_head() { return gridDim.z * gridDim.y * kHeads + blockIdx.z; }

__device__ __forceinline__ bf16* queries() { return reinterpret_cast<bf16*>(dynamic_shared()); }
__device__ __forceinline__ bf16* weights() { return reinterpret_cast<bf16*>(dynamic_shared() + kWeights); }
// Of each tile of keys and each query the largest score and the sum.
__device__ __forceinline__ float2* stats() { return reinterpret_cast<float2*>(dynamic_shared() + kStats); }
__device__ __forceinline__ bf16* keys() { return reinterpret_cast<bf16*>(dynamic_shared() + kKeys); }

// What a thread turns: a part of a query, and of keys in turn.
class Turn {
  using Rows = heads::HeadRows<kDim, kPitch>;
  static constexpr int kUnderWay = 5;  // keys

 public:
  __device__ __forceinline__ explicit Turn(const Args& args) : args_(args), end_((blockIdx.x + 1) * kRows) {
    key_ = own();
  }

  __device__ __forceinline__ bool more() const { return key_ < end_; }

  // Gains and angles are static.
  __device__ __forceinline__ void load_queries() {
    const int row = blockIdx.x * kRows + own() % kRows;
    Rows::load(args_.q_norm, query_gain_);
    load_angles(query_, row);
    pdl_wait();
    load_row(query_, row, first_head() + own() / kRows, true);
  }
  // As many as can be under way, each with its angles, so that the first can turn while the others come.
  __device__ __forceinline__ void load_keys() {
    Rows::load(args_.k_norm, gain_);
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) {
      const int row = key_ + i * kAtOnce + static_cast<int>(late_zero());  // not all angles in front
      if (counts(i)) load_angles(keys_[i], row);
      load_row(keys_[i], row, key_head(), counts(i));
    }
  }
  // What has come, to where products want it.
  __device__ __forceinline__ void store_queries() {
    store(query_, query_gain_, queries() + own() * kPitch);
  }
  __device__ __forceinline__ void store_keys() {
#pragma unroll
    for (int i = 0; i < kUnderWay; ++i) {
      if (counts(i)) store(keys_[i], gain_, keys() + (key_ + i * kAtOnce) * kPitch);
    }
    key_ += kUnderWay * kAtOnce;
  }

 private:
  struct Item {
    Rows::Row row;
    Rows::Values angles;
  };

  __device__ __forceinline__ static int own() { return threadIdx.x / 8; }
  // The same in all lanes of a warp.
  __device__ __forceinline__ bool counts(int i) const { return key_ + i * kAtOnce < end_; }

  __device__ __forceinline__ void load_angles(Item& item, int row) const {
    Rows::load(args_.rope + static_cast<size_t>(min(row, args_.rows - 1)) * args_.rope_stride, item.angles);
  }
  // Rows that are not there are zeros.
  __device__ __forceinline__ void load_row(Item& item, int row, int head, bool counts) const {
    const size_t at = min(row, args_.rows - 1);
    item.row = {};
    Rows::load(Rows::numbers_at(args_.qkv + at * args_.stride + head * kDim), counts && row < args_.rows,
               item.row);
  }
  __device__ __forceinline__ void store(const Item& item, const Rows::Values& gain, bf16* target) const {
    Rows::Values v;
    Rows::normalise_head(item.row, gain, args_.eps, v);
    Rows::turn(v, item.angles);
    Rows::store(target, v);
  }

  const Args args_;
  int end_, key_;
  Rows::Values query_gain_, gain_;
  Item query_, keys_[kUnderWay];
};

__device__ __forceinline__ void fetch_values(const Args& args, bf16* values, int end) {
  constexpr int kAcross = kDim / 8;
  const int column = threadIdx.x % kAcross * 8;
  const bf16* source = args.qkv + (key_head() + gridDim.z) * kDim + column;
#pragma unroll 1
  for (int row = threadIdx.x / kAcross; row < end; row += kThreads / kAcross) {
    const bool there = row < args.rows;
    copy16_async(shared_address(values + row * kPitch + column),
                 source + static_cast<size_t>(there ? row : 0) * args.stride, there);
  }
  copy_commit();
}

// Scores of both heads' rows and 16 keys, as probabilities times a sum of their own.
__device__ __forceinline__ void score(int tile, bool last, float scale_log2) {
  const int lane = threadIdx.x % 32;
  float s[kHeads][2][4] = {};
  const bf16* q = queries() + lane % 16 * kPitch + lane / 16 * 8;
  const bf16* k = keys() + (tile * kRows + lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 8;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t b[4];
    ldmatrix_x4(b, shared_address(k + step * 16));
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      uint32_t a[4];
      ldmatrix_x4(a, shared_address(q + head * kRows * kPitch + step * 16));
      mma_k16(s[head][0], a, b[0], b[1]);
      mma_k16(s[head][1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kHeads; ++i) {  // rows of this lane
    const int head = i / 2, half = i % 2, row = i * 8 + lane / 4;
    float v[4], top = -INFINITY;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const bool seen = !last || j / 2 * 8 + lane % 4 * 2 + j % 2 <= half * 8 + lane / 4;
      v[j] = seen ? s[head][j / 2][2 * half + j % 2] * scale_log2 : -INFINITY;
      top = fmaxf(top, v[j]);
    }
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, 2));
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = exp2_flushed(v[j] - top);
    uint32_t* target = reinterpret_cast<uint32_t*>(weights() + row * kWeightPitch + tile * kRows);
    target[lane % 4] = pack2(v[0], v[1]);
    target[lane % 4 + 4] = pack2(v[2], v[3]);
    const float sum = lane_sum<4>((v[0] + v[1]) + (v[2] + v[3]));
    if (lane % 4 == 0) stats()[tile * kQueries + row] = {top, sum};
  }
}

// 16 columns of both heads' rows, from `column` on, of all values; `out` is where row 0 and that column go.
template <class Out>
__device__ __forceinline__ void mix(const bf16* values, int column, int tiles, Out* out, int out_stride,
                                    int rows, float factor) {
  const int lane = threadIdx.x % 32;
  const float2* own = stats() + lane / 4;
  float top[2 * kHeads], sum[2 * kHeads] = {}, mixed[kHeads][2][4] = {};
#pragma unroll
  for (int i = 0; i < 2 * kHeads; ++i) top[i] = own[i * 8].x;
#pragma unroll 4
  for (int tile = 1; tile < tiles; ++tile) {
#pragma unroll
    for (int i = 0; i < 2 * kHeads; ++i) top[i] = fmaxf(top[i], own[tile * kQueries + i * 8].x);
  }
  const bf16* p = weights() + lane % 16 * kWeightPitch + lane / 16 * 8;
  const bf16* v = values + lane % 16 * kPitch + lane / 16 * 8 + column;
#pragma unroll 3
  for (int tile = 0; tile < tiles; ++tile) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, shared_address(v + tile * kRows * kPitch));
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      uint32_t a[4];
      float part[2][4] = {}, share[2];
      ldmatrix_x4(a, shared_address(p + head * kRows * kWeightPitch + tile * kRows));
      mma_k16(part[0], a, b[0], b[1]);
      mma_k16(part[1], a, b[2], b[3]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = 2 * head + half;
        const float2 stat = own[tile * kQueries + i * 8];
        share[half] = exp2_flushed(stat.x - top[i]);
        sum[i] = fmaf(share[half], stat.y, sum[i]);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) mixed[head][n][i] = fmaf(part[n][i], share[i / 2], mixed[head][n][i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * kHeads; ++i) {
    const int head = i / 2, half = i % 2, row = half * 8 + lane / 4;
    const float inverse = reciprocal_flushed(sum[i]);
    Out* target = out + static_cast<size_t>(row) * out_stride + head * kDim + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float* two = mixed[head][n] + 2 * half;
      if (row < rows) store2(target + n * 8, two[0] * inverse, two[1] * inverse, factor);
    }
  }
}

template <class Out>
__device__ __forceinline__ void attend(const Args& args, Out* out, const float* out_scale, int out_stride) {
  pdl_trigger();
  const int first = blockIdx.x * kRows, end = first + kRows, tiles = end / kRows, warp = threadIdx.x / 32;
  bf16* values = keys() + end * kPitch;
  const float factor = store_factor<Out>(out_scale);
  Turn turn(args);
  turn.load_queries();
  bool begun = false;
#pragma unroll 1
  do {
    turn.load_keys();
    if (!begun) {
      fetch_values(args, values, end);
      turn.store_queries();
    }
    turn.store_keys();
    begun = true;
  } while (turn.more());
  __syncthreads();
  for (int tile = warp; tile < tiles; tile += kWarps) score(tile, tile == tiles - 1, args.scale_log2);
  copy_wait<0>();
  __syncthreads();
  const int column = warp * 16;
  Out* target = out + static_cast<size_t>(first) * out_stride + first_head() * kDim + column;
  mix(values, column, tiles, target, out_stride, args.rows - first, factor);
}

}  // namespace causal_turned
}  // namespace flashrt

#define FLASHRT_CAUSAL_TURNED(name, Out)                                                           \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const flashrt::bf16* qkv, const float* rope, const float* q_norm, const float* k_norm,  \
           Out* out, const float* out_scale, int rows, int qkv_stride, int rope_stride,            \
           int out_stride, float scale, float eps) {                                               \
    flashrt::causal_turned::attend(                                                                \
        flashrt::causal_turned::Args{qkv, rope, q_norm, k_norm, rows, qkv_stride, rope_stride,     \
                                     scale * 1.4426950408889634f, eps},                            \
        out, out_scale, out_stride);                                                               \
  }

FLASHRT_CAUSAL_TURNED(attention_causal_turned_d128_bf16, flashrt::bf16)
FLASHRT_CAUSAL_TURNED(attention_causal_turned_d128_fp8, flashrt::e4m3)
