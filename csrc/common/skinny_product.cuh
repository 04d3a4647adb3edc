// skinny_product: y = x W^T for few rows x [A, K] and a weight W [N, K] that is read once: the time is
// that of the weight and of the dependency on the kernel in front, so both overlap.
//
// Before pdl_wait() a block has its whole share of W under way, to registers or (sm_90) by bulk copies
// to shared memory, which need no registers and do not hold up the loads of x. A block owns kRows
// rows of W over kDepth columns; its warps split them in kRowWarps x kDepthWarps parts. few_rows.cuh
// has the rest.
//
// Tensor cores: tokens on the 16-row side, weight rows on the 8-column side of m16n8k16. The order of
// K inside a product is free as long as both sides agree: a lane takes eight consecutive k of a row,
// 16 bytes, as its operands of two products, so row-major rows go from memory to the tensor cores
// without a shuffle. With kNorm, x^2 is summed on the tensor cores too, exactly.
#pragma once

#include <cstdint>

#include "few_rows.cuh"
#include "mma.cuh"
#include "pdl.cuh"

namespace flashrt {

template <class S, class Op>
class SkinnyProduct;

// kTiles: 16-token tiles; kColumns: 8-row tiles of W a warp; kChunks: 32-wide pieces of K a warp;
// kBlockScope as in few_rows.cuh.
template <int kTiles_, int kColumns_, int kChunks_, int kRowWarps_, int kDepthWarps_, int kSplit_,
          From kWeights_, int kWindow_, bool kNorm_, class Weight_ = bf16, bool kBlockScope_ = false>
struct SkinnyShape {
  template <class Op>
  using Product = SkinnyProduct<SkinnyShape, Op>;
  using Weight = Weight_;
  using Piece = WeightPiece<Weight>;  // eight neighbours in a row of W
  static constexpr bool kWhole = sizeof(Weight) == 1;
  static constexpr int kTiles = kTiles_, kColumns = kColumns_, kChunks = kChunks_;
  static constexpr int kRowWarps = kRowWarps_, kDepthWarps = kDepthWarps_;
  static constexpr int kSplit = kSplit_;
  static constexpr bool kBulkWeights = kWeights_ == From::kBulk, kNorm = kNorm_;
  static constexpr bool kCentred = false, kSteady = false, kBlockScope = kBlockScope_;
  static constexpr bool kOwnStays = false;
  static constexpr int kWindow = kWindow_;  // columns of W under way at a time, in bulk copies

  static constexpr int kTokens = 16 * kTiles;
  static constexpr int kMaxTokens = kTokens - (kNorm ? 2 : 0);  // the last two carry shift
  static constexpr int kWarps = kRowWarps * kDepthWarps, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 8 * kColumns, kRows = kWarpRows * kRowWarps;
  static constexpr int kDepth = 32 * kChunks * kDepthWarps, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  static_assert(kItems % kSplit == 0, "whole items a block");
  // Pieces of x in flight.
  static constexpr int kAhead = kTiles == 1 ? kChunks : kChunks > 4 ? 1 : 2;
  // The tokens of shift stay in their registers unless these are used for one piece after another.
  static constexpr bool kShiftShared = kNorm && kTiles > 1;
  // Columns whose first products are made before any second one, which has to wait for the first.
  static constexpr int kTogether = kTiles > 1        ? 1
                                   : kColumns % 4 == 0 ? 4
                                   : kColumns % 5 == 0 ? 5
                                                       : kColumns;
  // Independent accumulators for even and odd products while there are few.
  static constexpr int kChains = kTiles * kColumns <= 4 && !kWhole ? 2 : 1;
  static constexpr int kSquareChains = kTiles > 1 ? 1 : 4;

  // Shared memory. Pitches keep 16-byte reads of two rows, and partial sums, apart in the banks.
  static constexpr int kRowBytes = kDepth * sizeof(Weight) + 32 * sizeof(Weight);
  static constexpr int kPitch = kColumns == 1 ? 8 : kWarpRows + 8;
  static constexpr int kPartial = kTokens * kPitch * 4;
  static constexpr int kPartials = 0, kPartRows = kWarpRows, kParts = kDepthWarps, kSquareParts = kDepthWarps;
  // The partial sums of all warps take the place of the weights.
  static constexpr int kWeightBytes = kBulkWeights ? kRows * kRowBytes : 0;
  static constexpr int kPartialBytes = kWarps * kPartial;
  static constexpr int kScale = kWeightBytes > kPartialBytes ? kWeightBytes : kPartialBytes;
  static constexpr int kShift = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kSquares = kShift + (kShiftShared ? kDepth * 4 : 0);
  static constexpr int kReceived = kSquares + (kNorm ? kDepthWarps * kTokens * 4 : 0);
  static constexpr int kReceivedSquares =
      kReceived + (kSplit > 1 ? kSplit * kTokens * kOwn * 16 : 0);
  static constexpr int kBarriers = kReceivedSquares + (kSplit > 1 && kNorm ? kSplit * kTokens * 4 : 0);
  static constexpr int kSharedBytes = (kBarriers + (1 + kColumns) * 8 + 15) / 16 * 16;
};

template <class S, class Op>
class SkinnyProduct : FewRows<S, Op> {
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::floats, Base::grow, Base::shift_row;
  using Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_, Base::thread_, Base::tile_;
  using Base::warp_, Base::kWeightsCame;
  using Weight = typename S::Weight;
  using Piece = typename S::Piece;
  static constexpr int kBytes = sizeof(Weight);

 public:
  __device__ __forceinline__ SkinnyProduct(const FewRowsInput<typename S::Weight>& input, Op& op)
      : Base(input, op) {
    row_ = lane_ / 4;
    depth_warp_ = warp_ % S::kDepthWarps;
    row_warp_ = warp_ / S::kDepthWarps;
    first_k_ = split_ * S::kDepth + depth_warp_ * S::kChunks * 32 + lane_ % 4 * 8;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    if constexpr (S::kBulkWeights || S::kSplit > 1) set_barriers();
    if constexpr (S::kBulkWeights) {
      fetch_weights_bulk();
    } else {
      fetch_weights();
    }
    this->prepare();
    if constexpr (S::kNorm) fetch_condition();
    if constexpr (S::kSplit > 1) cluster_wait();
    begin();
    multiply();
    this->collect();
  }

 private:
  // From the end of the kernel in front to all that the products take.
  __device__ __forceinline__ void begin() {
    pdl_wait();
    fetch_tokens();
    this->fetch();
    if constexpr (S::kWhole) widening_.begin();
    if constexpr (S::kBulkWeights) {
#pragma unroll
      for (int column = 0; column < S::kColumns; ++column) {
        this->wait(kWeightsCame + column);
      }
    }
  }

  // Row of W in shared memory: rows of a column of all row warps are neighbours, so they come at once.
  __device__ __forceinline__ unsigned char* weight_row(int row_warp, int column, int row) const {
    return shared_ + ((column * S::kRowWarps + row_warp) * 8 + row) * S::kRowBytes;
  }
  __device__ __forceinline__ bool is_shift(int tile, int half) const {
    return S::kNorm && tile == S::kTiles - 1 && half == 1 && row_ >= 6;
  }

  __device__ __forceinline__ void set_barriers() {
    if (thread_ == 0) {
      if constexpr (S::kSplit > 1) this->expect_pushes();
      if constexpr (S::kBulkWeights) {
#pragma unroll
        for (int column = 0; column < S::kColumns; ++column) {
          expect_bytes(barrier(kWeightsCame + column), S::kRowWarps * 8 * S::kDepth * kBytes);
        }
      }
    }
    if constexpr (S::kSplit > 1) {
      __syncwarp();
      cluster_arrive_relaxed();
    }
    if constexpr (S::kBulkWeights) __syncthreads();
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
        const Weight* p = in_.weight + static_cast<size_t>(from) * S::kInner + split_ * S::kDepth;
        copy_run(weight_row(row_warp, column, row), p, S::kDepth * kBytes,
                 barrier(kWeightsCame + column));
      }
      __syncwarp();
    }
  }

  __device__ __forceinline__ void fetch_weights() {
#pragma unroll
    for (int column = 0; column < S::kColumns; ++column) {
      const int from = op_.weight_row(tile_, row_warp_ * S::kColumns + column, row_);
      const Weight* p = in_.weight + static_cast<size_t>(from) * S::kInner + first_k_;
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) {
        weights_[column][chunk] = load_weights(p + chunk * 32);
      }
    }
  }

  __device__ __forceinline__ uint4 weights(int column, int chunk) const {
    if constexpr (S::kBulkWeights) {
      const int k = (depth_warp_ * S::kChunks + chunk) * (32 * kBytes) + lane_ % 4 * (8 * kBytes);
      return widening_(*reinterpret_cast<const Piece*>(weight_row(row_warp_, column, row_) + k));
    } else {
      return widening_(weights_[column][chunk]);
    }
  }

  __device__ __forceinline__ void fetch_condition() {
    float scale[8];
    this->load_scale(scale);
    if constexpr (S::kShiftShared) {
      this->fetch_shift();
    } else {
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) tokens_[chunk][0][1] = shift_part(chunk);
    }
    this->leave_scale(scale);
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
#pragma unroll
    for (int chunk = 0; chunk < S::kAhead; ++chunk) fetch_chunk(chunk);
  }

  __device__ __forceinline__ void fetch_chunk(int chunk) {
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

  __device__ __forceinline__ uint4 tokens(int chunk, int tile, int half) const {
    if constexpr (S::kShiftShared) {
      const int k = (depth_warp_ * S::kChunks + chunk) * 64 + lane_ % 4 * 16;
      if (is_shift(tile, half)) return *reinterpret_cast<const uint4*>(shift_row(row_ - 6) + k);
    }
    return tokens_[chunk % S::kAhead][tile][half];
  }

  __device__ __forceinline__ void multiply() {
    float sums[S::kChains][S::kTiles][S::kColumns][4] = {};
    float squares[S::kNorm ? S::kSquareChains : 1][S::kNorm ? S::kTiles : 1][4] = {};
    constexpr bool kInPlace = S::kNorm && S::kTiles == 1;
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
    x[0] = grow(x[0], scale);
    const uint4 grown = grow(x[1], scale);
    if (!is_shift(tile, 1)) x[1] = grown;
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

  int row_, depth_warp_, row_warp_, first_k_;
  Piece weights_[S::kBulkWeights ? 1 : S::kColumns][S::kBulkWeights ? 1 : S::kChunks];
  Widening widening_;
  uint4 tokens_[S::kAhead][S::kTiles][2] = {};
};

}  // namespace flashrt
