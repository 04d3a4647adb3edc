// few_rows: what products y = x W^T of few rows x [A, K] with a weight W [N, K] have in common: where
// partial sums of a block and of a cluster meet, and how the results reach the op.
//
// A block owns kRows rows of W. Its warps leave partial sums in shared memory; the kSplit blocks of a
// cluster split K, push each other the sums that another block finishes, and each finishes 1/kSplit
// of the rows. Sums meet in a fixed order (warps, then blocks), so equal inputs give equal bits.
//
// With kNorm the rows are RMS-normalised and conditioned on the way, without waiting for their mean
// square: y = r ((x (1 + scale)) W^T) + shift W^T, r = 1 / sqrt(mean(x^2) + eps). x (1 + scale) is
// rounded to bf16 once, as the normalised row is elsewhere; shift rides along as two more tokens, the
// last two of kTokens: its bf16 value and the rest. r comes last. With kCentred the norm is that of a
// layer, which takes the mean m off: y = r ((x g) W^T - m (g W^T)) + shift W^T; `scale` is its gain g,
// which x is multiplied by as x + x (g - 1), and rides along as two tokens behind those of shift.
//
// Weights are bf16, or int8 with a float32 scale a row (S::kWhole): widened to bf16, which holds them
// exactly, on their way to the tensor cores; the finished sum is multiplied by its row's scale. Or both x and
// W are E4M3 (a Weight of that type), each with a scale of its own, and so is the sum.
//
// A shape S gives, besides the names above: Weight, its type; Product, the class that multiplies; kThreads;
// kInner = K; kItems = kRows / 4, groups of four outputs of a token; kOwn = kItems / kSplit, of them those
// this block finishes; kParts partial sums of kPartRows rows each, kPitch floats a token, kPartial bytes a
// part; kSquareParts partial sums of x^2; and where they lie in shared memory.
//
// With kBlockScope barriers are waited for with the scope of the block: what they bring lies in shared
// memory, and no wait empties the first-level cache (tile_copy.cuh).
//
// A block pushes its sums to itself too, unless S::kOwnStays: then they are taken from where they lie. Of E4M3
// operands they are pushed as bf16 (pushed_sums.cuh). What to finish may be shared out by tokens instead
// (few_rows_by_tokens.cuh).
//
// An op gives: which row of W a block's row is (weight_row), the rows of an item (low_row, high_row and
// the row behind each; kNeighbours where they are four in a row) and their scales (row_scales), what to
// read before the kernel in front has finished (prepare) and after (fetch, kFetches), and what to do with
// four sums (finish).
#pragma once

#include <cstdint>
#include <type_traits>

#include "cluster.cuh"
#include "pushed_sums.cuh"
#include "quantise.cuh"
#include "stream.cuh"
#include "tile_copy.cuh"
#include "vector.cuh"

namespace flashrt {

// Where W waits: registers, or shared memory, by bulk copies of rows or as tiles of the copy engine.
enum class From { kRegisters, kBulk, kTiles };

template <class W>
struct FewRowsInput {
  const bf16* x;  // [tokens, K], rows x_stride elements apart
  const W* weight;
  const float* weight_scale;  // [N], with kWhole; of E4M3 [1], or [N] with rows_scaled
  const CUtensorMap* tiles;  // of W, instead of `weight` with From::kTiles
  const float *scale, *shift;  // [K], of a norm; with kCentred also null: 1 and 0
  float eps;
  int tokens, x_stride;
  const CUtensorMap* rows = nullptr;  // of x, instead of `x` where the copy engine fetches it
  const float* x_scale = nullptr;     // [1], of E4M3
  const float* moments = nullptr;     // of x (row_moments.cuh), or null; with kCentred
  int slabs = 0;                      // of them
  bool rows_scaled = false;           // of E4M3
};

// What an op gives whose items are four rows of W that follow each other, in order.
template <class S>
struct NeighbourRows {
  static constexpr bool kNeighbours = true;

  __device__ __forceinline__ static int low_row(int item) { return item * 4; }
  __device__ __forceinline__ static int high_row(int item) { return item * 4 + 2; }

  __device__ __forceinline__ int weight_row(int tile, int column, int row) const {
    return tile * S::kRows + column * 8 + row;
  }

  __device__ __forceinline__ static float4 row_scales(const float* scales, int tile, int item) {
    return *reinterpret_cast<const float4*>(scales + tile * S::kRows + item * 4);
  }
};

template <class S, class Op>
class FewRows {
 protected:
  using Pushed = PushedSums<typename S::Weight>;
  static constexpr int kPushed = 0, kWeightsCame = 1;  // barriers
  static constexpr int kFrom = S::kSplit - (S::kOwnStays ? 1 : 0);  // blocks whose pushes come
  static constexpr bool kNarrow = std::is_same_v<typename S::Weight, e4m3>;
  // Tokens that are no rows of x: where the first of them is, seen from the end, and how many.
  static constexpr int kBack = S::kCentred ? 4 : 2, kExtra = S::kNorm ? kBack : 0;

  __device__ __forceinline__ FewRows(const FewRowsInput<typename S::Weight>& input, Op& op)
      : in_(input), op_(op), shared_(dynamic_shared()) {
    thread_ = threadIdx.x;
    lane_ = thread_ % 32;
    warp_ = thread_ / 32;
    split_ = S::kSplit > 1 ? cluster_rank() : 0;
    tile_ = blockIdx.x / S::kSplit;
  }

  __device__ __forceinline__ float* floats(int offset) const {
    return reinterpret_cast<float*>(shared_ + offset);
  }
  __device__ __forceinline__ uint64_t* barrier(int index) const {
    return reinterpret_cast<uint64_t*>(shared_ + S::kBarriers) + index;
  }

  // By one thread, before it arrives at the cluster.
  __device__ __forceinline__ void wait(int index) const {
    if constexpr (S::kBlockScope) {
      barrier_wait(shared_address(barrier(index)), 0);
    } else {
      wait_bytes(barrier(index));
    }
  }
  __device__ __forceinline__ void expect_pushes() const {
    const int rows = in_.tokens + kExtra;
    const int squares = S::kNorm && !known() ? in_.tokens * (S::kCentred ? 8 : 4) : 0;
    expect_bytes(barrier(kPushed), kFrom * (rows * S::kOwn * Pushed::kBytes + squares));
  }

  // What the op needs for this thread's first item.
  __device__ __forceinline__ void prepare() {
    op_.prepare(tile_, split_ * S::kOwn + thread_ % S::kOwn);
    fetch_row_scales(split_ * S::kOwn + thread_ % S::kOwn);
  }
  __device__ __forceinline__ void fetch_row_scales(int item) {
    if constexpr (S::kWhole) {
      const float4 s = op_.row_scales(in_.weight_scale, tile_, item);
      constexpr float k = Widening::kFactor;
      row_scales_ = {s.x * k, s.y * k, s.z * k, s.w * k};
    } else if constexpr (kNarrow) {
      const float one = in_.rows_scaled ? 1.0f : *in_.weight_scale, k = *in_.x_scale * one;
      row_scales_ = {k, k, k, k};
      if (!in_.rows_scaled) return;
      const float4 s = op_.row_scales(in_.weight_scale, tile_, item);
      row_scales_ = {s.x * k, s.y * k, s.z * k, s.w * k};
    }
  }
  __device__ __forceinline__ void fetch() {
    op_.fetch(tile_, thread_ / S::kOwn, split_ * S::kOwn + thread_ % S::kOwn, in_.tokens);
  }

  // Scale, eight columns of a thread: on its way, and then as bf16 to shared memory.
  __device__ __forceinline__ void load_scale(float (&v)[8]) const {
    static_assert(S::kDepth <= S::kThreads * 8, "columns of one turn");
    if (thread_ * 8 < S::kDepth) load8(in_.scale + split_ * S::kDepth + thread_ * 8, v);
  }
  __device__ __forceinline__ void leave_scale(const float (&v)[8]) const {
    if (thread_ * 8 >= S::kDepth) return;
    *reinterpret_cast<uint4*>(shared_ + S::kScale + thread_ * 16) = {
        pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7])};
  }

  // Shift as two bf16 rows in shared memory, the value and what its rounding left.
  __device__ __forceinline__ void fetch_shift() const {
    for (int k = thread_ * 2; k < S::kDepth; k += S::kThreads * 2) {
      const float2 v = *reinterpret_cast<const float2*>(in_.shift + split_ * S::kDepth + k);
      const uint32_t upper = pack2(v.x, v.y);
      const float2 rounded = unpack2(upper);
      *reinterpret_cast<uint32_t*>(shift_row(0) + k * 2) = upper;
      *reinterpret_cast<uint32_t*>(shift_row(1) + k * 2) = pack2(v.x - rounded.x, v.y - rounded.y);
    }
  }
  __device__ __forceinline__ unsigned char* shift_row(int part) const {
    return shared_ + S::kShift + part * S::kDepth * 2;
  }

  // Gain and shift of a centred norm, on their way; where weights are asked for too, before them, or they
  // come when all of those have come.
  struct Centred {
    static constexpr int kTurns = (S::kDepth + 2 * S::kThreads - 1) / (2 * S::kThreads);
    float2 gains[kTurns], shifts[kTurns];
  };
  __device__ __forceinline__ Centred load_centred() const {
    Centred v;
#pragma unroll
    for (int turn = 0; turn < Centred::kTurns; ++turn) {
      const int k = (turn * S::kThreads + thread_) * 2, at = split_ * S::kDepth + k;
      v.gains[turn] = {1.0f, 1.0f}, v.shifts[turn] = {0.0f, 0.0f};
      if (k >= S::kDepth) continue;
      if (in_.scale) v.gains[turn] = *reinterpret_cast<const float2*>(in_.scale + at);
      if (in_.shift) v.shifts[turn] = *reinterpret_cast<const float2*>(in_.shift + at);
    }
    return v;
  }
  // gain - 1 as bf16, which x is grown by, and shift as two bf16 rows.
  __device__ __forceinline__ void leave_centred(const Centred& v) const {
#pragma unroll
    for (int turn = 0; turn < Centred::kTurns; ++turn) {
      const int k = (turn * S::kThreads + thread_) * 2;
      if (k >= S::kDepth) break;
      const float2 gain = v.gains[turn];
      *reinterpret_cast<uint32_t*>(shared_ + S::kScale + k * 2) = pack2(gain.x - 1.0f, gain.y - 1.0f);
      leave_vector(0, k, v.shifts[turn]);
    }
  }
  __device__ __forceinline__ void leave_vector(int row, int k, float2 v) const {
    const uint32_t upper = pack2(v.x, v.y);
    const float2 rounded = unpack2(upper);
    *reinterpret_cast<uint32_t*>(vector_row(row) + k * 2) = upper;
    *reinterpret_cast<uint32_t*>(vector_row(row + 1) + k * 2) = pack2(v.x - rounded.x, v.y - rounded.y);
  }
  __device__ __forceinline__ unsigned char* vector_row(int row) const {
    return shared_ + S::kShift + row * S::kVector;
  }

  // x (1 + scale)
  __device__ __forceinline__ static uint4 grow(const uint4& x, const uint4& s) {
    return {grow2(x.x, s.x), grow2(x.y, s.y), grow2(x.z, s.z), grow2(x.w, s.w)};
  }

  // Once all partial sums and squares of the block lie in shared memory.
  __device__ __forceinline__ void collect() {
    __syncthreads();
    if constexpr (S::kSplit > 1) {
      scatter();
      wait(kPushed);
    }
    finish();
  }

  FewRowsInput<typename S::Weight> in_;
  Op& op_;
  unsigned char* shared_;
  int thread_, lane_, warp_, split_, tile_;
  float4 row_scales_;  // of this thread's item, with kWhole or kNarrow

  // The sum over the parts, for two neighbouring rows of W.
  __device__ __forceinline__ float2 sum_pair(int token, int row) const {
    const int first = row / S::kPartRows * S::kParts;
    const float* p = floats(S::kPartials + first * S::kPartial) + token * S::kPitch + row % S::kPartRows;
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int part = 0; part < S::kParts; ++part) {
      const float2 v = *reinterpret_cast<const float2*>(p + part * (S::kPartial / 4));
      sum.x += v.x;
      sum.y += v.y;
    }
    return sum;
  }

  __device__ __forceinline__ float4 sum_item(int token, int item) const {
    if constexpr (Op::kNeighbours) {
      const int row = Op::low_row(item), first = row / S::kPartRows * S::kParts;
      const float* p = floats(S::kPartials + first * S::kPartial) + token * S::kPitch + row % S::kPartRows;
      float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int part = 0; part < S::kParts; ++part) {
        const float4 v = *reinterpret_cast<const float4*>(p + part * (S::kPartial / 4));
        sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
      }
      return sum;
    }
    const float2 low = sum_pair(token, Op::low_row(item));
    const float2 high = sum_pair(token, Op::high_row(item));
    return {low.x, low.y, high.x, high.y};
  }

  // shift W^T or, behind it, gain W^T: its two tokens together.
  template <int kFirst = S::kTokens - kBack>
  __device__ __forceinline__ float4 sum_shift(int own, int item) const {
    constexpr bool kPushes = S::kSplit > 1;
    const float4 a = kPushes ? received(kFirst, own) : sum_item(kFirst, item);
    const float4 b = kPushes ? received(kFirst + 1, own) : sum_item(kFirst + 1, item);
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }

  __device__ __forceinline__ float sum_squares(int token) const {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < S::kSquareParts; ++part) {
      sum += floats(S::kSquares)[part * S::kTokens + token];
    }
    return sum;
  }
  __device__ __forceinline__ float sum_totals(int token) const {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < S::kSquareParts; ++part) {
      sum += floats(S::kTotals)[part * S::kTokens + token];
    }
    return sum;
  }

  // Every item to the block of the cluster that finishes it. A warp pushes to one neighbour at a time,
  // its lanes next to each other; blocks begin with different neighbours.
  __device__ __forceinline__ void scatter() {
    constexpr int kWarps = S::kThreads / 32, kStride = kWarps / kFrom * 32;
    static_assert(kWarps >= kFrom, "a warp has one neighbour to push to");
    if (kWarps % kFrom != 0 && warp_ >= kWarps / kFrom * kFrom) return;
    const int next = S::kOwnStays ? split_ + 1 + warp_ % kFrom : warp_ + split_;
    const int rank = next % S::kSplit, first = warp_ / kFrom * 32 + lane_;
    const int place = S::kOwnStays && split_ > rank ? split_ - 1 : split_;  // among those whose pushes come
    const uint32_t base = remote_address(shared_, rank);
    const uint32_t pushed = base + S::kBarriers + kPushed * 8;
    const int rows = in_.tokens + kExtra;
    for (int i = first; i < rows * S::kOwn; i += kStride) {
      const int row = i / S::kOwn, own = i % S::kOwn;
      const int token = row < in_.tokens ? row : row - in_.tokens + S::kTokens - kBack;
      const int at = (place * S::kTokens + token) * S::kOwn + own;
      const float4 v = sum_item(token, rank * S::kOwn + own);
      Pushed::send(base + S::kReceived + at * Pushed::kBytes, pushed, v);
    }
    if constexpr (S::kCentred) {
      if (known()) return;
      for (int token = first; token < in_.tokens; token += kStride) {
        push(base + S::kReceivedSquares + (place * S::kTokens + token) * 8, pushed,
             float2{sum_squares(token), sum_totals(token)});
      }
    } else if constexpr (S::kNorm) {
      for (int token = first; token < in_.tokens; token += kStride) {
        push(base + S::kReceivedSquares + (place * S::kTokens + token) * 4, pushed,
             sum_squares(token));
      }
    }
  }

  __device__ __forceinline__ float4 received(int token, int own) const {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < S::kSplit; ++from) {
      if (S::kOwnStays && from == split_) {
        const float4 v = sum_item(token, split_ * S::kOwn + own);
        sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
        continue;
      }
      const int place = S::kOwnStays && from > split_ ? from - 1 : from;
      const int at = (place * S::kTokens + token) * S::kOwn + own;
      const float4 v = Pushed::read(shared_ + S::kReceived + at * Pushed::kBytes);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return sum;
  }

  __device__ __forceinline__ float received_squares(int token) const {
    float sum = 0.0f;
#pragma unroll
    for (int from = 0; from < S::kSplit; ++from) {
      sum += floats(S::kReceivedSquares)[from * S::kTokens + token];
    }
    return sum;
  }

  // Whether the kernel in front has left the moments of x; then those of all tokens, as below, lie where the
  // block would have its sums.
  __device__ __forceinline__ bool known() const { return S::kCentred && in_.moments; }
  __device__ __forceinline__ float2* merged() const {
    static_assert(S::kSquareParts >= 2, "two floats a token");
    return reinterpret_cast<float2*>(shared_ + S::kSquares);
  }

  // Of a token of a centred norm: its mean, and what its differences from that are multiplied by.
  __device__ __forceinline__ float2 moments(int token) const {
    if (known()) return merged()[token];
    float2 sum = {0.0f, 0.0f};
    if constexpr (S::kSplit > 1) {
#pragma unroll
      for (int from = 0; from < S::kSplit; ++from) {
        float2 v = {0.0f, 0.0f};
        if (S::kOwnStays && from == split_) {
          v = {sum_squares(token), sum_totals(token)};
        } else {
          const int place = S::kOwnStays && from > split_ ? from - 1 : from;
          v = reinterpret_cast<const float2*>(shared_ + S::kReceivedSquares)[place * S::kTokens + token];
        }
        sum = {sum.x + v.x, sum.y + v.y};
      }
    } else {
      sum = {sum_squares(token), sum_totals(token)};
    }
    const float mean = sum.y * (1.0f / S::kInner);
    const float variance = fmaxf(sum.x * (1.0f / S::kInner) - mean * mean, 0.0f);
    return {mean, rsqrtf(variance + in_.eps)};
  }

  __device__ __forceinline__ void finish() {
    constexpr bool kPushes = S::kSplit > 1;
    constexpr bool kSameItem = S::kThreads % S::kOwn == 0;  // a thread's items differ in token only
    // So they do with kSteady, which leaves the last threads out: what an item needs is there already.
    constexpr int kStride = S::kSteady ? S::kThreads / S::kOwn * S::kOwn : S::kThreads;
    if (S::kSteady && thread_ >= kStride) return;
    float4 b = {0.0f, 0.0f, 0.0f, 0.0f}, g = {0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (S::kCentred) {
      static_assert(S::kSteady, "an item a thread");
      const int own = thread_ % S::kOwn;
      b = sum_shift(own, split_ * S::kOwn + own);
      g = sum_shift<S::kTokens - 2>(own, split_ * S::kOwn + own);
    }
    if constexpr (S::kNorm && !S::kCentred && kSameItem) {
      const int own = thread_ % S::kOwn;
      if (thread_ < in_.tokens * S::kOwn) b = sum_shift(own, split_ * S::kOwn + own);
    }
    for (int i = thread_; i < in_.tokens * S::kOwn; i += kStride) {
      const int token = i / S::kOwn, own = i % S::kOwn, item = split_ * S::kOwn + own;
      if (Op::kFetches && S::kMaxTokens * S::kOwn > S::kThreads && i >= kStride) {
        if constexpr (!S::kSteady) op_.prepare(tile_, item);
        op_.fetch(tile_, token, item, in_.tokens);
      }
      if (!kSameItem && !S::kSteady && S::kMaxTokens * S::kOwn > S::kThreads && i >= S::kThreads) {
        fetch_row_scales(item);
      }
      float4 y = kPushes ? received(token, own) : sum_item(token, item);
      if constexpr (S::kCentred) {
        const float2 m = moments(token);
        y = {(y.x - m.x * g.x) * m.y + b.x, (y.y - m.x * g.y) * m.y + b.y,
             (y.z - m.x * g.z) * m.y + b.z, (y.w - m.x * g.w) * m.y + b.w};
      } else if constexpr (S::kNorm) {
        const float squares = kPushes ? received_squares(token) : sum_squares(token);
        const float r = rsqrtf(squares * (1.0f / S::kInner) + in_.eps);
        if constexpr (!kSameItem) b = sum_shift(own, item);
        y = {y.x * r + b.x, y.y * r + b.y, y.z * r + b.z, y.w * r + b.w};
      }
      if constexpr (S::kWhole || kNarrow) {
        const float4& s = row_scales_;
        y = {y.x * s.x, y.y * s.y, y.z * s.z, y.w * s.w};
      }
      op_.finish(tile_, token, item, y);
    }
  }
};

// Runs the product of shape S.
template <class S, class Op>
__device__ __forceinline__ void few_rows_product(const FewRowsInput<typename S::Weight>& input, Op op) {
  typename S::template Product<Op>(input, op).run();
}

}  // namespace flashrt
