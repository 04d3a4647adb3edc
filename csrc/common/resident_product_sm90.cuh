// resident_product_sm90: y = x W^T for up to 48 rows x [A, K] and int8 weights (sm_90a), x of a block all at
// once: the copy engine fetches it in tiles of 64 columns as soon as pdl_wait() returns, so that its way
// from L2 is waited for once and not once a step.
//
// As in few_rows_product_sm90.cuh a block owns 64 rows of W over kDepth columns, halved between two
// warpgroups, and W waits in registers. Here its columns are packed in the order of operands: of every 32,
// place 8 c + 4 s + 2 h + j holds column 16 s + 8 h + 2 c + j (s, h, j of 2, c of 4), so that x stays as it
// is. With kWide a block owns 128 rows, 64 a warpgroup, and both take all of its columns: half as many of x
// for a block to fetch and to condition, and more sums to push. Behind a norm x is conditioned where it lies; the four vectors that ride along (few_rows.cuh) are
// there before it.
#pragma once

#include <cstdint>

#include "few_rows.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace flashrt {

template <class S, class Op>
class ResidentProduct;

// kSteps: 64-wide pieces of K a warpgroup; kSplit blocks in a cluster.
template <int kSteps_, int kSplit_, bool kNorm_, bool kWide_ = false>
struct ResidentShape {
  template <class Op>
  using Product = ResidentProduct<ResidentShape, Op>;
  using Weight = int8_t;
  using Piece = WeightPiece<Weight>;
  static constexpr bool kWhole = true, kNorm = kNorm_, kCentred = kNorm_, kSteady = kNorm_, kLean = true;
  static constexpr bool kOwnStays = false;
  static constexpr int kSteps = kSteps_, kSplit = kSplit_, kTokens = 48, kSpecial = kNorm ? 4 : 0;
  static constexpr int kMaxTokens = kTokens - kSpecial;
  static constexpr bool kWide = kWide_;
  static constexpr int kGroups = 2, kThreads = 128 * kGroups, kRows = kWide ? 128 : 64;
  static constexpr int kTiles = kWide ? kSteps : kGroups * kSteps;  // of x
  static constexpr int kGroupDepth = kWide ? 0 : 64 * kSteps, kDepth = 64 * kTiles;  // from group to group
  static_assert(!kWide || (kNorm && kSteps % 2 == 0), "pairs of tiles to condition");
  static constexpr int kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  // Widened under the products of the step before, where there are registers for two steps' operands.
  static constexpr bool kEager = !(kNorm && kSteps > 2);
  static constexpr int kPieces = kTokens / 16;  // 16-byte pieces of x a lane conditions in a step
  static_assert(kItems % kSplit == 0, "whole items a block");

  // Shared memory. Partial sums take the place of x.
  static constexpr int kPitch = 64 + 4, kPartial = kTokens * kPitch * 4, kPartials = 0;
  static constexpr int kPartRows = 64, kParts = kWide ? 1 : kGroups, kSquareParts = kGroups;
  static constexpr int kTileBytes = kTokens * 128, kFetchedBytes = kMaxTokens * 128;
  static constexpr int kFetched = kTiles * kTileBytes, kSummed = kGroups * kPartial;
  static constexpr int kScale = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kSquares = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kTotals = kSquares + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceived = kTotals + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceivedSquares = kReceived + kSplit * kTokens * kOwn * 16;
  static constexpr int kBarriers = kReceivedSquares + (kNorm ? kSplit * kTokens * 8 : 0);
  static constexpr int kSharedBytes = (kBarriers + (1 + kTiles) * 8 + 15) / 16 * 16;
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class ResidentProduct : FewRows<S, Op> {
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::floats, Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_;
  using Base::thread_, Base::tile_, Base::warp_, Base::kWeightsCame;

 public:
  __device__ __forceinline__ ResidentProduct(const FewRowsInput<int8_t>& input, Op& op) : Base(input, op) {
    group_ = warp_ / 4;
    slab_ = warp_ % 4;  // of 16 rows of W
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    if (thread_ == 0) set_barriers();
    __syncwarp();
    cluster_arrive();
    fetch_weights();
    if constexpr (S::kNorm) {
      fetch_vectors();
      publish_shared();
    }
    __syncthreads();  // the barriers and what conditions x
    cluster_wait();
    pdl_wait();
    if (thread_ == 0) fetch_tokens();
    multiply();
    this->collect();
  }

 private:
  // Which 64 columns of a warpgroup's share a step takes: clusters begin with different ones, as all read
  // the same x.
  __device__ __forceinline__ int columns(int step) const { return (step + tile_) % S::kSteps; }
  __device__ __forceinline__ unsigned char* tile(int group, int columns) const {
    return shared_ + ((S::kWide ? 0 : group * S::kSteps) + columns) * S::kTileBytes;
  }
  __device__ __forceinline__ uint32_t full(int group, int columns) const {
    return shared_address(barrier(kWeightsCame + (S::kWide ? 0 : group * S::kSteps) + columns));
  }

  __device__ __forceinline__ void set_barriers() const {
    prefetch_map(*in_.rows);
    this->expect_pushes();
#pragma unroll 1
    for (int i = 0; i < S::kTiles; ++i) barrier_init(full(0, i), 1);
    barrier_init_fence();
#pragma unroll 1
    for (int i = 0; i < S::kTiles; ++i) barrier_expect(full(0, i), S::kFetchedBytes);
  }

  // In the order of use, by the thread that made the barriers.
  __device__ __forceinline__ void fetch_tokens() const {
#pragma unroll 1
    for (int step = 0; step < S::kSteps; ++step) {
      const int from = columns(step);
#pragma unroll
      for (int group = 0; group < S::kTiles / S::kSteps; ++group) {
        copy_tile(*in_.rows, shared_address(tile(group, from)), full(group, from),
                  split_ * S::kDepth + group * S::kGroupDepth + from * 64, 0);
      }
    }
  }

  // The block's row at row `row` of the product: two rows of a thread are neighbours.
  __device__ __forceinline__ const int8_t* weight_address(int row) const {
    const int local = (S::kWide ? group_ * 64 : 0) + row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
    const int from = op_.weight_row(tile_, local / 8, local % 8);
    return in_.weight + static_cast<size_t>(from) * S::kInner + split_ * S::kDepth + group_ * S::kGroupDepth;
  }
  __device__ __forceinline__ void fetch_weights() {
    const int8_t* low = weight_address(slab_ * 16 + lane_ / 4) + lane_ % 4 * 8;
    const int8_t* high = weight_address(slab_ * 16 + 8 + lane_ / 4) + lane_ % 4 * 8;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        const int k = columns(step) * 64 + chunk * 32;
        weights_[step][chunk][0] = load_weights(low + k);
        weights_[step][chunk][1] = load_weights(high + k);
      }
    }
  }

  // gain - 1 as bf16; shift and the gain that this is, each as two rows of every tile.
  __device__ __forceinline__ void fetch_vectors() const {
    for (int k = thread_ * 2; k < S::kDepth; k += S::kThreads * 2) {
      const int at = split_ * S::kDepth + k;
      float2 gain = {1.0f, 1.0f}, shift = {0.0f, 0.0f};
      if (in_.scale) gain = *reinterpret_cast<const float2*>(in_.scale + at);
      if (in_.shift) shift = *reinterpret_cast<const float2*>(in_.shift + at);
      const uint32_t growth = pack2(gain.x - 1.0f, gain.y - 1.0f);
      const float2 grown = unpack2(growth);
      *reinterpret_cast<uint32_t*>(shared_ + S::kScale + k * 2) = growth;
      leave_rows(0, k, shift);
      leave_rows(2, k, {1.0f + grown.x, 1.0f + grown.y});
    }
  }
  __device__ __forceinline__ void leave_rows(int first, int k, float2 v) const {
    const uint32_t upper = pack2(v.x, v.y);
    const float2 rounded = unpack2(upper);
    *place(first, k) = upper;
    *place(first + 1, k) = pack2(v.x - rounded.x, v.y - rounded.y);
  }
  // Two columns of a vector, in its row behind those of x.
  __device__ __forceinline__ uint32_t* place(int vector, int k) const {
    const int row = S::kMaxTokens + vector, unit = k % 64 / 8;
    unsigned char* to = tile(0, k / 64) + row * 128 + (unit ^ (row & 7)) * 16 + k % 8 * 2;
    return reinterpret_cast<uint32_t*>(to);
  }

  // A step of x where it lies: a piece belongs to one lane.
  __device__ __forceinline__ void condition(int columns, float (&squares)[S::kPieces],
                                            float (&totals)[S::kPieces]) const {
    const int unit = lane_ % 8, k = group_ * S::kGroupDepth + columns * 64 + unit * 8;
    const uint4 scale = *reinterpret_cast<const uint4*>(shared_ + S::kScale + k * 2);
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      const int token = slab_ * 4 + lane_ / 8 + 16 * i;
      if (16 * i + 16 > S::kMaxTokens && token >= S::kMaxTokens) break;
      unsigned char* at = tile(group_, columns) + token * 128 + (unit ^ (token & 7)) * 16;
      uint4& x = *reinterpret_cast<uint4*>(at);
      const uint4 v = x;
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 pair = unpack2(words[j]);
        squares[i] = fmaf(pair.x, pair.x, squares[i]);
        squares[i] = fmaf(pair.y, pair.y, squares[i]);
        totals[i] += pair.x + pair.y;
      }
      x = this->grow(v, scale);
    }
  }

  __device__ __forceinline__ void multiply() {
    if constexpr (S::kWide) {
      multiply_pairs();
      return;
    }
    float sums[S::kTokens / 2];
    float squares[S::kPieces] = {}, totals[S::kPieces] = {};
    uint32_t columns = this->columns(0);
    widening_.begin();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      barrier_wait(full(group_, columns), 0);
      if constexpr (S::kNorm) {
        condition(columns, squares, totals);
        publish_shared();
      }
      uint32_t w[4][4];
      if constexpr (S::kEager) load_operands(step, w);  // under the products of before
      if (step > 0) wgmma_wait<0>();
      if constexpr (!S::kEager) load_operands(step, w);
      if constexpr (S::kNorm) wgmma_sync(1 + group_, 128);
      wgmma_begin();
      const uint64_t x = wgmma_tile(shared_address(tile(group_, columns)));
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaRegisters<S::kTokens>::run(sums, w[part], wgmma_step(x, part), step > 0 || part > 0);
      }
      wgmma_commit();
      columns = columns + 1 < S::kSteps ? columns + 1 : 0;
      settle(columns);  // one register for all steps' addresses
    }
    if constexpr (S::kNorm) leave_squares(squares, totals);
    this->prepare();
    this->fetch();
    wgmma_wait<0>();
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
  }

  // Two steps of x at a time, of which each warpgroup conditions one.
  __device__ __forceinline__ void multiply_pairs() {
    float sums[S::kTokens / 2];
    float squares[S::kPieces] = {}, totals[S::kPieces] = {};
    uint32_t columns = this->columns(0);
    widening_.begin();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      if (step % 2 == 0) {
        const int own = this->columns(step + group_);
        barrier_wait(full(0, own), 0);
        condition(own, squares, totals);
        publish_shared();
      }
      if (step > 0) wgmma_wait<0>();
      uint32_t w[4][4];
      load_operands(step, w);
      if (step % 2 == 0) __syncthreads();
      wgmma_begin();
      const uint64_t x = wgmma_tile(shared_address(tile(0, columns)));
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaRegisters<S::kTokens>::run(sums, w[part], wgmma_step(x, part), step > 0 || part > 0);
      }
      wgmma_commit();
      columns = columns + 1 < S::kSteps ? columns + 1 : 0;
      settle(columns);
    }
    leave_squares(squares, totals);
    this->prepare();
    this->fetch();
    wgmma_wait<0>();
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
  }

  // A step's operands of four products, 16 columns each.
  __device__ __forceinline__ void load_operands(int step, uint32_t (&w)[4][4]) const {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      const uint4 low = widening_(weights_[step][chunk][0]);
      const uint4 high = widening_(weights_[step][chunk][1]);
      w[chunk * 2][0] = low.x, w[chunk * 2][1] = high.x, w[chunk * 2][2] = low.y, w[chunk * 2][3] = high.y;
      w[chunk * 2 + 1][0] = low.z, w[chunk * 2 + 1][1] = high.z;
      w[chunk * 2 + 1][2] = low.w, w[chunk * 2 + 1][3] = high.w;
    }
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kTokens / 2]) const {
    float* target = floats(S::kPartials + group_ * S::kPartial) + slab_ * 16;
#pragma unroll
    for (int i = 0; i < S::kTokens / 4; ++i) {
      const int octet = i / 2, odd = i % 2, token = octet * 8 + lane_ % 4 * 2 + odd;
      const bool keep = token < in_.tokens || (S::kNorm && token >= S::kMaxTokens);
      store_shared_if(keep, target + token * S::kPitch + lane_ / 4 * 2,
                      {sums[octet * 4 + odd], sums[octet * 4 + 2 + odd]});
    }
  }

  __device__ __forceinline__ void leave_squares(const float (&squares)[S::kPieces],
                                                const float (&totals)[S::kPieces]) const {
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      float sum = squares[i], total = totals[i];
#pragma unroll
      for (int other = 1; other < 8; other *= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, other);
        total += __shfl_xor_sync(0xffffffffu, total, other);
      }
      const int token = slab_ * 4 + lane_ / 8 + 16 * i;
      if (lane_ % 8 == 0 && token < S::kMaxTokens) {
        floats(S::kSquares)[group_ * S::kTokens + token] = sum;
        floats(S::kTotals)[group_ * S::kTokens + token] = total;
      }
    }
  }

  int group_, slab_;
  typename S::Piece weights_[S::kSteps][2][2];
  Widening widening_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
