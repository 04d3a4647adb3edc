// skinny_product: y = x W^T for few rows x [A, K] and a weight W [N, K] that is read once: the time is
// that of the weight and of the dependency on the kernel in front, so both overlap.
//
// Before pdl_wait() a block has its whole share of W under way, to registers or (sm_90) by bulk copies
// to shared memory, which need no registers and do not hold up the loads of x. A block owns kRows
// rows of W over kDepth columns; its warps split them in kRowWarps x kDepthWarps parts. The kSplit
// blocks of a cluster split K, and each finishes 1/kSplit of the rows; or the kShare blocks of a
// cluster share the same x, and each fetches a part of it for all. Partial sums meet in a fixed order
// (warps, then blocks), so equal inputs give equal bits.
//
// Tensor cores: tokens on the 16-row side, weight rows on the 8-column side of m16n8k16. The order of
// K inside a product is free as long as both sides agree: a lane takes eight consecutive k of a row,
// 16 bytes, as its operands of two products, so row-major rows go from memory to the tensor cores
// without a shuffle.
//
// With kNorm the rows are RMS-normalised and conditioned on the way, without waiting for their mean
// square: y = r ((x (1 + scale)) W^T) + shift W^T, r = 1 / sqrt(mean(x^2) + eps). x (1 + scale) is
// rounded to bf16 once, as the normalised row is elsewhere; shift rides along as two more tokens, its
// bf16 value and the rest; x^2 is summed on the tensor cores, exactly. r comes last.
#pragma once

#include <cstdint>

#include "cluster.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "reduce.cuh"
#include "stream.cuh"
#include "vector.cuh"

namespace flashrt {

enum class From { kRegisters, kBulk };  // where operands wait: registers, or shared memory by bulk copy

// kTiles: 16-token tiles; kColumns: 8-row tiles of W a warp; kChunks: 32-wide pieces of K a warp.
template <int kTiles_, int kColumns_, int kChunks_, int kRowWarps_, int kDepthWarps_, int kSplit_,
          int kShare_, From kWeights_, From kX_, int kWindow_, bool kNorm_>
struct SkinnyShape {
  static constexpr int kTiles = kTiles_, kColumns = kColumns_, kChunks = kChunks_;
  static constexpr int kRowWarps = kRowWarps_, kDepthWarps = kDepthWarps_;
  static constexpr int kSplit = kSplit_, kShare = kShare_, kCluster = kSplit * kShare;
  static constexpr bool kBulkWeights = kWeights_ == From::kBulk, kBulkX = kX_ == From::kBulk;
  static constexpr bool kNorm = kNorm_;
  static constexpr int kWindow = kWindow_;  // columns of W under way at a time, in bulk copies
  static_assert(kSplit == 1 || kShare == 1, "a cluster splits K or shares x");
  static_assert(kShare == 1 || kBulkX, "x is shared by bulk copies");

  static constexpr int kTokens = 16 * kTiles;
  static constexpr int kMaxTokens = kTokens - (kNorm ? 2 : 0);  // the last two carry shift
  static constexpr int kWarps = kRowWarps * kDepthWarps, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 8 * kColumns, kRows = kWarpRows * kRowWarps;
  static constexpr int kDepth = 32 * kChunks * kDepthWarps, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  static_assert(kItems % kSplit == 0, "whole items a block");
  // Pieces of x in flight where they go to registers.
  static constexpr int kAhead = kBulkX || (kTiles > 1 && kChunks > 4) ? 1 : kTiles == 1 ? kChunks : 2;
  // The tokens of shift stay in their registers unless these are used for one piece after another.
  static constexpr bool kShiftShared = kNorm && !kBulkX && kTiles > 1;
  static constexpr int kTogether = kTiles > 1        ? 1
                                   : kColumns % 4 == 0 ? 4
                                   : kColumns % 5 == 0 ? 5
                                                       : kColumns;
  // Independent accumulators for even and odd products while there are few.
  static constexpr int kChains = kTiles * kColumns <= 4 ? 2 : 1;
  static constexpr int kSquareChains = kTiles > 1 ? 1 : 4;

  // Shared memory. Pitches keep 16-byte reads of two rows, and partial sums, apart in the banks.
  static constexpr int kRowBytes = kDepth * 2 + 64;
  static constexpr int kPitch = kColumns == 1 ? 8 : kWarpRows + 8;
  static constexpr int kPartial = kTokens * kPitch * 4;
  // The partial sums of all warps take the place of the weights.
  static constexpr int kWeightBytes = kBulkWeights ? kRows * kRowBytes : 0;
  static constexpr int kPartialBytes = kWarps * kPartial;
  static constexpr int kX = kWeightBytes > kPartialBytes ? kWeightBytes : kPartialBytes;
  static constexpr int kScale = kX + (kBulkX ? kTokens * kRowBytes : 0);
  static constexpr int kShift = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kSquares = kShift + (kShiftShared ? kDepth * 4 : 0);
  static constexpr int kReceived = kSquares + (kNorm ? kDepthWarps * kTokens * 4 : 0);
  static constexpr int kReceivedRows = kTokens;
  static constexpr int kReceivedSquares =
      kReceived + (kSplit > 1 ? kSplit * kReceivedRows * kOwn * 16 : 0);
  static constexpr int kBarriers = kReceivedSquares + (kSplit > 1 && kNorm ? kSplit * kTokens * 4 : 0);
  static constexpr int kSharedBytes = (kBarriers + (2 + kColumns) * 8 + 15) / 16 * 16;
};

struct SkinnyInput {
  const bf16* x;  // [tokens, K], rows x_stride elements apart
  const bf16* weight;
  const float *scale, *shift;  // [K], with kNorm
  float eps;
  int tokens, x_stride;
};

template <class S, class Op>
class SkinnyProduct {
 public:
  __device__ __forceinline__ SkinnyProduct(const SkinnyInput& input, Op& op)
      : in_(input), op_(op), shared_(dynamic_shared()) {
    thread_ = threadIdx.x;
    lane_ = thread_ % 32;
    warp_ = thread_ / 32;
    row_ = lane_ / 4;
    depth_warp_ = warp_ % S::kDepthWarps;
    row_warp_ = warp_ / S::kDepthWarps;
    const int rank = S::kCluster > 1 ? cluster_rank() : 0;
    split_ = S::kSplit > 1 ? rank : 0;
    share_ = S::kShare > 1 ? rank : 0;
    tile_ = blockIdx.x / S::kSplit;
    first_k_ = split_ * S::kDepth + depth_warp_ * S::kChunks * 32 + lane_ % 4 * 8;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    if constexpr (S::kBulkWeights || S::kCluster > 1 || S::kBulkX) set_barriers();
    if constexpr (S::kBulkWeights) {
      fetch_weights_bulk();
    } else {
      fetch_weights();
    }
    const int first_item = split_ * S::kOwn;
    op_.prepare(tile_, first_item + thread_ % S::kOwn);
    if constexpr (S::kNorm) fetch_condition();
    if constexpr (S::kCluster > 1) cluster_wait();
    pdl_wait();
    fetch_tokens();
    op_.fetch(tile_, thread_ / S::kOwn, first_item + thread_ % S::kOwn, in_.tokens);
    if constexpr (S::kBulkWeights) {
#pragma unroll
      for (int column = 0; column < S::kColumns; ++column) wait_bytes(barrier(kWeightsCame + column));
    }
    multiply();
    __syncthreads();
    if constexpr (S::kSplit > 1) {
      scatter();
      wait_bytes(barrier(kPushed));
    }
    finish();
  }

 private:
  static constexpr int kPushed = 0, kXCame = 1, kWeightsCame = 2;

  __device__ __forceinline__ float* floats(int offset) const {
    return reinterpret_cast<float*>(shared_ + offset);
  }
  __device__ __forceinline__ uint64_t* barrier(int index) const {
    return reinterpret_cast<uint64_t*>(shared_ + S::kBarriers) + index;
  }
  // Row of W in shared memory: rows of a column of all row warps are neighbours, so they come at once.
  __device__ __forceinline__ unsigned char* weight_row(int row_warp, int column, int row) const {
    return shared_ + ((column * S::kRowWarps + row_warp) * 8 + row) * S::kRowBytes;
  }
  __device__ __forceinline__ unsigned char* token_row(int token) const {
    return shared_ + S::kX + token * S::kRowBytes;
  }
  __device__ __forceinline__ unsigned char* shift_row(int part) const {
    return S::kBulkX ? token_row(S::kTokens - 2 + part) : shared_ + S::kShift + part * S::kDepth * 2;
  }
  __device__ __forceinline__ bool is_shift(int tile, int half) const {
    return S::kNorm && tile == S::kTiles - 1 && half == 1 && row_ >= 6;
  }

  __device__ __forceinline__ void set_barriers() {
    if (thread_ == 0) {
      if constexpr (S::kSplit > 1) {
        const int rows = in_.tokens + (S::kNorm ? 2 : 0);
        const int squares = S::kNorm ? in_.tokens * 4 : 0;
        expect_bytes(barrier(kPushed), S::kSplit * (rows * S::kOwn * 16 + squares));
      }
      if constexpr (S::kBulkX) expect_bytes(barrier(kXCame), in_.tokens * S::kDepth * 2);
      if constexpr (S::kBulkWeights) {
#pragma unroll
        for (int column = 0; column < S::kColumns; ++column) {
          expect_bytes(barrier(kWeightsCame + column), S::kRowWarps * 8 * S::kDepth * 2);
        }
      }
    }
    if constexpr (S::kCluster > 1) {
      __syncwarp();
      cluster_arrive();
    }
    if constexpr (S::kBulkX || S::kBulkWeights) __syncthreads();
  }

  // Column by column, kWindow of them under way at a time: a block that asked for all at once would
  // fill the queues of the memory system, and the kernel in front would wait behind it.
  __device__ __forceinline__ void fetch_weights_bulk() const {
    if (warp_ != 0) return;
#pragma unroll 1
    for (int column = 0; column < S::kColumns; ++column) {
      if (column >= S::kWindow) wait_bytes(barrier(kWeightsCame + column - S::kWindow));
#pragma unroll
      for (int i = 0; i < 8 * S::kRowWarps; i += 32) {
        const int row_warp = (i + lane_) / 8, row = lane_ % 8;
        if (row_warp >= S::kRowWarps) break;
        const int from = op_.weight_row(tile_, row_warp * S::kColumns + column, row);
        const bf16* p = in_.weight + static_cast<size_t>(from) * S::kInner + split_ * S::kDepth;
        copy_run(weight_row(row_warp, column, row), p, S::kDepth * 2, barrier(kWeightsCame + column));
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void fetch_weights() {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      const int from = op_.weight_row(tile_, row_warp_ * S::kColumns + column, row_);
      const bf16* p = in_.weight + static_cast<size_t>(from) * S::kInner + first_k_;
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) {
        weights_[column][chunk] = load_weights(p + chunk * 32);
      }
    }
  }

  __device__ __forceinline__ uint4 weights(int column, int chunk) const {
    if constexpr (S::kBulkWeights) {
      const int k = (depth_warp_ * S::kChunks + chunk) * 64 + lane_ % 4 * 16;
      return *reinterpret_cast<const uint4*>(weight_row(row_warp_, column, row_) + k);
    } else {
      return weights_[column][chunk];
    }
  }

  // Scale as bf16; shift as two bf16 rows, the value and what its rounding left.
  __device__ __forceinline__ void fetch_condition() {
    for (int k = thread_ * 8; k < S::kDepth; k += S::kThreads * 8) {
      float v[8];
      load8(in_.scale + split_ * S::kDepth + k, v);
      *reinterpret_cast<uint4*>(shared_ + S::kScale + k * 2) = {
          pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7])};
    }
    if constexpr (S::kBulkX || S::kShiftShared) {
      for (int k = thread_ * 2; k < S::kDepth; k += S::kThreads * 2) {
        const float2 v = *reinterpret_cast<const float2*>(in_.shift + split_ * S::kDepth + k);
        const uint32_t upper = pack2(v.x, v.y);
        const float2 rounded = unpack2(upper);
        *reinterpret_cast<uint32_t*>(shift_row(0) + k * 2) = upper;
        *reinterpret_cast<uint32_t*>(shift_row(1) + k * 2) =
            pack2(v.x - rounded.x, v.y - rounded.y);
      }
    }
    if constexpr (S::kBulkX) {
      // Rows without a token count as zero, so that no NaN comes out of them.
      constexpr int kPieces = S::kDepth / 8;
      for (int i = thread_; i < (S::kMaxTokens - in_.tokens) * kPieces; i += S::kThreads) {
        unsigned char* row = token_row(in_.tokens + i / kPieces);
        *reinterpret_cast<uint4*>(row + i % kPieces * 16) = {0u, 0u, 0u, 0u};
      }
    } else if constexpr (!S::kShiftShared) {
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) tokens_[chunk][0][1] = shift_part(chunk);
    }
    __syncthreads();
  }

  __device__ __forceinline__ uint4 shift_part(int chunk) const {
    if (row_ < 6) return {0u, 0u, 0u, 0u};
    float v[8];
    uint32_t part[4];
    load8(in_.shift + first_k_ + chunk * 32, v);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      part[i] = pack2(v[2 * i], v[2 * i + 1]);
      const float2 rounded = unpack2(part[i]);
      if (row_ == 7) part[i] = pack2(v[2 * i] - rounded.x, v[2 * i + 1] - rounded.y);
    }
    return {part[0], part[1], part[2], part[3]};
  }

  __device__ __forceinline__ void fetch_tokens() {
    if constexpr (S::kBulkX) {
      if (warp_ == S::kWarps - 1) {
        for (int i = lane_ * S::kShare + share_; i < in_.tokens; i += 32 * S::kShare) {
          const bf16* p = in_.x + static_cast<size_t>(i) * in_.x_stride + split_ * S::kDepth;
          if constexpr (S::kShare > 1) {
            copy_run_to(token_row(i), p, S::kDepth * 2, barrier(kXCame), (1 << S::kShare) - 1);
          } else {
            copy_run(token_row(i), p, S::kDepth * 2, barrier(kXCame));
          }
        }
        __syncwarp();
      }
      wait_bytes(barrier(kXCame));
    } else {
#pragma unroll
      for (int chunk = 0; chunk < S::kAhead; ++chunk) fetch_chunk(chunk);
    }
  }

  __device__ __forceinline__ void fetch_chunk(int chunk) {
    if constexpr (!S::kBulkX) {
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = tile * 16 + half * 8 + row_;
          const bf16* p = in_.x + token * in_.x_stride + first_k_ + chunk * 32;
          load_fresh(tokens_[chunk % S::kAhead][tile][half], p, token < in_.tokens);
        }
      }
    }
  }

  __device__ __forceinline__ uint4 tokens(int chunk, int tile, int half) const {
    if constexpr (S::kBulkX) {
      const int k = (depth_warp_ * S::kChunks + chunk) * 64 + lane_ % 4 * 16;
      return *reinterpret_cast<const uint4*>(token_row(tile * 16 + half * 8 + row_) + k);
    } else {
      if constexpr (S::kShiftShared) {
        const int k = (depth_warp_ * S::kChunks + chunk) * 64 + lane_ % 4 * 16;
        if (is_shift(tile, half)) return *reinterpret_cast<const uint4*>(shift_row(row_ - 6) + k);
      }
      return tokens_[chunk % S::kAhead][tile][half];
    }
  }

  __device__ __forceinline__ void multiply() {
    float sums[S::kChains][S::kTiles][S::kColumns][4] = {};
    float squares[S::kNorm ? S::kSquareChains : 1][S::kNorm ? S::kTiles : 1][4] = {};
    constexpr bool kInPlace = S::kNorm && !S::kBulkX && S::kAhead == S::kChunks;
    if constexpr (kInPlace) {
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) {
#pragma unroll
        for (int tile = 0; tile < S::kTiles; ++tile) condition(squares, chunk, tile, tokens_[chunk][tile]);
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      uint4 x[S::kTiles][2];
#pragma unroll
      for (int tile = 0; tile < S::kTiles; ++tile) {
        x[tile][0] = tokens(chunk, tile, 0);
        x[tile][1] = tokens(chunk, tile, 1);
        if constexpr (S::kNorm && !kInPlace) condition(squares, chunk, tile, x[tile]);
      }
      if (chunk + S::kAhead < S::kChunks) fetch_chunk(chunk + S::kAhead);
      // A few columns at a time: all their first products, then all second ones, which need the first.
#pragma unroll
      for (int first = 0; first < S::kColumns; first += S::kTogether) {
        uint4 w[S::kTogether];
#pragma unroll
        for (int i = 0; i < S::kTogether; ++i) {
          w[i] = weights(first + i, chunk);
        }
#pragma unroll
        for (int i = 0; i < S::kTogether; ++i) {
#pragma unroll
          for (int tile = 0; tile < S::kTiles; ++tile) {
            const uint4 &a = x[tile][0], &b = x[tile][1];
            mma_k16(sums[0][tile][first + i], {a.x, b.x, a.y, b.y}, w[i].x, w[i].y);
          }
        }
#pragma unroll
        for (int i = 0; i < S::kTogether; ++i) {
#pragma unroll
          for (int tile = 0; tile < S::kTiles; ++tile) {
            const uint4 &a = x[tile][0], &b = x[tile][1];
            mma_k16(sums[S::kChains - 1][tile][first + i], {a.z, b.z, a.w, b.w}, w[i].z, w[i].w);
          }
        }
      }
    }
    if constexpr (S::kBulkWeights) __syncthreads();  // all have read the weights that lie here
    leave_partials(sums);
    if constexpr (S::kNorm) {
      if (row_warp_ == 0) leave_squares(squares);
    }
  }

  // Adds x^2 to the squares and turns x into x (1 + scale).
  template <int kParts, int kTileCount>
  __device__ __forceinline__ void condition(float (&squares)[kParts][kTileCount][4], int chunk,
                                            int tile, uint4 (&x)[2]) {
    const int k = (depth_warp_ * S::kChunks + chunk) * 64 + lane_ % 4 * 16;
    const uint4 scale = *reinterpret_cast<const uint4*>(shared_ + S::kScale + k);
    if (S::kRowWarps == 1 || row_warp_ == 0) add_squares(squares, tile, x);
    grow(x[0], scale, true);
    grow(x[1], scale, !is_shift(tile, 1));
  }

  // x x^T of 8 tokens with themselves has their sums of squares on its diagonal. Tokens 0-7 of a tile
  // end in values 0 and 1, tokens 8-15 in values 2 and 3.
  template <int kParts, int kTileCount>
  __device__ __forceinline__ void add_squares(float (&squares)[kParts][kTileCount][4], int tile,
                                              const uint4 (&x)[2]) {
    const uint4 &a = x[0], &b = x[1];
    mma_k16(squares[0][tile], {a.x, 0u, a.y, 0u}, a.x, a.y);
    mma_k16(squares[1 % kParts][tile], {0u, b.x, 0u, b.y}, b.x, b.y);
    mma_k16(squares[2 % kParts][tile], {a.z, 0u, a.w, 0u}, a.z, a.w);
    mma_k16(squares[3 % kParts][tile], {0u, b.z, 0u, b.w}, b.z, b.w);
  }

  __device__ __forceinline__ void grow(uint4& x, const uint4& s, bool grows) const {
    const uint4 y = {grow2(x.x, s.x), grow2(x.y, s.y), grow2(x.z, s.z), grow2(x.w, s.w)};
    if (grows) x = y;
  }

  template <int kChainCount, int kTileCount, int kColumnCount>
  __device__ __forceinline__ void leave_partials(
      const float (&sums)[kChainCount][kTileCount][kColumnCount][4]) const {
    float* target = floats(warp_ * S::kPartial) + lane_ % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < kTileCount; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = tile * 16 + half * 8 + row_;
        const bool keep = token < in_.tokens || is_shift(tile, half);
#pragma unroll
        for (int column = 0; column < kColumnCount; ++column) {
          float2 v = {sums[0][tile][column][2 * half], sums[0][tile][column][2 * half + 1]};
          if constexpr (kChainCount == 2) {
            v.x += sums[1][tile][column][2 * half];
            v.y += sums[1][tile][column][2 * half + 1];
          }
          store_shared_if(keep, target + token * S::kPitch + column * 8, v);
        }
      }
    }
  }

  template <int kParts, int kTileCount>
  __device__ __forceinline__ void leave_squares(const float (&squares)[kParts][kTileCount][4]) const {
    if (lane_ % 4 != row_ / 2) return;  // not on the diagonal
    float* target = floats(S::kSquares) + depth_warp_ * S::kTokens + row_;
#pragma unroll
    for (int tile = 0; tile < kTileCount; ++tile) {
      float low = 0.0f, high = 0.0f;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const float(&v)[4] = squares[part][tile];
        low += row_ % 2 ? v[1] : v[0];
        high += row_ % 2 ? v[3] : v[2];
      }
      target[tile * 16] = low;
      target[tile * 16 + 8] = high;
    }
  }

  // The sum over the warps that split K, for two neighbouring rows of W.
  __device__ __forceinline__ float2 sum_pair(int token, int row) const {
    const int first = row / S::kWarpRows * S::kDepthWarps;
    const float* p = floats(first * S::kPartial) + token * S::kPitch + row % S::kWarpRows;
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int part = 0; part < S::kDepthWarps; ++part) {
      const float2 v = *reinterpret_cast<const float2*>(p + part * (S::kPartial / 4));
      sum.x += v.x;
      sum.y += v.y;
    }
    return sum;
  }

  __device__ __forceinline__ float4 sum_item(int token, int item) const {
    if constexpr (Op::kNeighbours) {
      const int row = Op::low_row(item), first = row / S::kWarpRows * S::kDepthWarps;
      const float* p = floats(first * S::kPartial) + token * S::kPitch + row % S::kWarpRows;
      float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int part = 0; part < S::kDepthWarps; ++part) {
        const float4 v = *reinterpret_cast<const float4*>(p + part * (S::kPartial / 4));
        sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
      }
      return sum;
    }
    const float2 low = sum_pair(token, Op::low_row(item));
    const float2 high = sum_pair(token, Op::high_row(item));
    return {low.x, low.y, high.x, high.y};
  }

  // shift W^T: its two tokens together.
  __device__ __forceinline__ float4 sum_shift(int own, int item) const {
    constexpr bool kPushes = S::kSplit > 1;
    const float4 a = kPushes ? received(S::kTokens - 2, own) : sum_item(S::kTokens - 2, item);
    const float4 b = kPushes ? received(S::kTokens - 1, own) : sum_item(S::kTokens - 1, item);
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }

  __device__ __forceinline__ float sum_squares(int token) const {
    float sum = 0.0f;
#pragma unroll
    for (int part = 0; part < S::kDepthWarps; ++part) {
      sum += floats(S::kSquares)[part * S::kTokens + token];
    }
    return sum;
  }

  // Every item to the block of the cluster that finishes it.
  __device__ __forceinline__ void scatter() {
    const int rows = in_.tokens + (S::kNorm ? 2 : 0);
    for (int i = thread_; i < rows * S::kItems; i += S::kThreads) {
      const int row = i / S::kItems, item = i % S::kItems;
      const int token = row < in_.tokens ? row : row - in_.tokens + S::kTokens - 2;
      const uint32_t base = remote_address(shared_, item / S::kOwn);
      const int at = (split_ * S::kReceivedRows + token) * S::kOwn + item % S::kOwn;
      push(base + S::kReceived + at * 16, base + S::kBarriers + kPushed * 8, sum_item(token, item));
    }
    if constexpr (S::kNorm) {
      for (int i = S::kThreads - 1 - thread_; i < in_.tokens * S::kSplit; i += S::kThreads) {
        const int token = i / S::kSplit;
        const uint32_t base = remote_address(shared_, i % S::kSplit);
        const int at = split_ * S::kTokens + token;
        push(base + S::kReceivedSquares + at * 4, base + S::kBarriers + kPushed * 8,
             sum_squares(token));
      }
    }
  }

  __device__ __forceinline__ float4 received(int token, int own) const {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < S::kSplit; ++from) {
      const int at = (from * S::kReceivedRows + token) * S::kOwn + own;
      const float4 v = reinterpret_cast<const float4*>(shared_ + S::kReceived)[at];
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

  __device__ __forceinline__ void finish() {
    constexpr bool kPushes = S::kSplit > 1;
    for (int i = thread_; i < in_.tokens * S::kOwn; i += S::kThreads) {
      const int token = i / S::kOwn, own = i % S::kOwn, item = split_ * S::kOwn + own;
      if (Op::kFetches && S::kMaxTokens * S::kOwn > S::kThreads && i >= S::kThreads) {
        op_.prepare(tile_, item);
        op_.fetch(tile_, token, item, in_.tokens);
      }
      float4 y = kPushes ? received(token, own) : sum_item(token, item);
      if constexpr (S::kNorm) {
        const float squares = kPushes ? received_squares(token) : sum_squares(token);
        const float r = rsqrtf(squares * (1.0f / S::kInner) + in_.eps);
        const float4 b = sum_shift(own, item);
        y = {y.x * r + b.x, y.y * r + b.y, y.z * r + b.z, y.w * r + b.w};
      }
      op_.finish(tile_, token, item, y);
    }
  }

  SkinnyInput in_;
  Op& op_;
  unsigned char* shared_;
  int thread_, lane_, warp_, row_, depth_warp_, row_warp_, split_, share_, tile_, first_k_;
  uint4 weights_[S::kBulkWeights ? 1 : S::kColumns][S::kBulkWeights ? 1 : S::kChunks];
  uint4 tokens_[S::kAhead][S::kBulkX ? 1 : S::kTiles][2] = {};
};

template <class S, class Op>
__device__ __forceinline__ void skinny_product(const SkinnyInput& input, Op op) {
  SkinnyProduct<S, Op>(input, op).run();
}

}  // namespace flashrt
