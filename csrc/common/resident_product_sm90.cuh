// resident_product_sm90: y = x W^T for up to 48 rows x [A, K] and int8 weights (sm_90a), x of a block all at
// once: the copy engine fetches it in tiles of 64 columns as soon as pdl_wait() returns, so that its way
// from L2 is waited for once and not once a step.
//
// As in few_rows_product_sm90.cuh a block owns 64 rows of W over kDepth columns, halved between two
// warpgroups, and W waits in registers. x stays as it is, so W comes into the order of operands on its way
// to the tensor cores: of every 32 columns the four lanes of a row hold eight neighbours each, and trade
// them for what two products take of theirs.
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
template <int kSteps_, int kSplit_>
struct ResidentShape {
  template <class Op>
  using Product = ResidentProduct<ResidentShape, Op>;
  using Weight = int8_t;
  using Piece = WeightPiece<Weight>;
  static constexpr bool kWhole = true, kNorm = false, kCentred = false, kSteady = false, kBlockScope = true;
  static constexpr bool kOwnStays = false;
  static constexpr int kSteps = kSteps_, kSplit = kSplit_, kTokens = 48, kMaxTokens = kTokens;
  static constexpr int kGroups = 2, kThreads = 128 * kGroups, kRows = 64;
  static constexpr int kTiles = kGroups * kSteps;  // of x
  static constexpr int kGroupDepth = 64 * kSteps, kDepth = kGroups * kGroupDepth, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  static_assert(kItems % kSplit == 0, "whole items a block");

  // Shared memory. Partial sums take the place of x.
  static constexpr int kPitch = 64 + 4, kPartial = kTokens * kPitch * 4, kPartials = 0;
  static constexpr int kPartRows = 64, kParts = kGroups, kSquareParts = kGroups;
  static constexpr int kTileBytes = kTokens * 128;
  static constexpr int kFetched = kTiles * kTileBytes, kSummed = kGroups * kPartial;
  static constexpr int kScale = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kSquares = kScale, kTotals = kScale, kReceived = kScale;  // no norm
  static constexpr int kReceivedSquares = kReceived + kSplit * kTokens * kOwn * 16;
  static constexpr int kBarriers = kReceivedSquares;
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
    __syncthreads();  // the barriers
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
    return shared_ + (group * S::kSteps + columns) * S::kTileBytes;
  }
  __device__ __forceinline__ uint32_t full(int group, int columns) const {
    return shared_address(barrier(kWeightsCame + group * S::kSteps + columns));
  }

  __device__ __forceinline__ void set_barriers() const {
    prefetch_map(*in_.rows);
    this->expect_pushes();
#pragma unroll 1
    for (int i = 0; i < S::kTiles; ++i) barrier_init(full(0, i), 1);
    barrier_init_fence();
#pragma unroll 1
    for (int i = 0; i < S::kTiles; ++i) barrier_expect(full(0, i), S::kTileBytes);
  }

  // In the order of use, by the thread that made the barriers.
  __device__ __forceinline__ void fetch_tokens() const {
#pragma unroll 1
    for (int step = 0; step < S::kSteps; ++step) {
      const int from = columns(step);
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) {
        copy_tile(*in_.rows, shared_address(tile(group, from)), full(group, from),
                  split_ * S::kDepth + group * S::kGroupDepth + from * 64, 0);
      }
    }
  }

  // The block's row at row `row` of the product: two rows of a thread are neighbours.
  __device__ __forceinline__ const int8_t* weight_address(int row) const {
    const int local = row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
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

  __device__ __forceinline__ void multiply() {
    float sums[S::kTokens / 2];
    uint32_t columns = this->columns(0);
    widening_.begin();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      uint32_t w[4][4];
      load_operands(step, w);  // while x comes, then under the products of before
      barrier_wait(full(group_, columns), 0);
      if (step > 0) wgmma_wait<0>();
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
      const uint4 low = widening_(trade(weights_[step][chunk][0]));
      const uint4 high = widening_(trade(weights_[step][chunk][1]));
      w[chunk * 2][0] = low.x, w[chunk * 2][1] = high.x, w[chunk * 2][2] = low.y, w[chunk * 2][3] = high.y;
      w[chunk * 2 + 1][0] = low.z, w[chunk * 2 + 1][1] = high.z;
      w[chunk * 2 + 1][2] = low.w, w[chunk * 2 + 1][3] = high.w;
    }
  }

  // Pair i of lane j's four pairs of columns to lane i as its pair j, among the four lanes of a row.
  __device__ __forceinline__ uint2 trade(const uint2& own) const {
    const bool upper = lane_ & 2, odd = lane_ & 1;
    const uint32_t far = __shfl_xor_sync(0xffffffffu, upper ? own.x : own.y, 2);
    const uint32_t first = upper ? far : own.x, second = upper ? own.y : far;
    const uint32_t kept = __byte_perm(first, second, odd ? 0x7632 : 0x5410);
    const uint32_t near = __shfl_xor_sync(0xffffffffu, __byte_perm(first, second, odd ? 0x5410 : 0x7632), 1);
    return {__byte_perm(kept, near, odd ? 0x1054 : 0x5410), __byte_perm(kept, near, odd ? 0x3276 : 0x7632)};
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kTokens / 2]) const {
    float* target = floats(S::kPartials + group_ * S::kPartial) + slab_ * 16;
#pragma unroll
    for (int i = 0; i < S::kTokens / 4; ++i) {
      const int octet = i / 2, odd = i % 2, token = octet * 8 + lane_ % 4 * 2 + odd;
      store_shared_if(token < in_.tokens, target + token * S::kPitch + lane_ / 4 * 2,
                      {sums[octet * 4 + odd], sums[octet * 4 + 2 + odd]});
    }
  }

  int group_, slab_;
  typename S::Piece weights_[S::kSteps][2][2];
  Widening widening_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
