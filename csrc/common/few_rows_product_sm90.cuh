// few_rows_product_sm90: y = x W^T for up to 64 rows x [A, K] on warpgroup products (sm_90a); for more
// than a few rows skinny_product's m16n8k16 products and their loads of x take longer than W.
//
// Weight rows take the 64-row side of a product, tokens the n side. A block owns 64 rows of W over
// kDepth columns, split between two warpgroups; few_rows.cuh has what happens to their sums. Before
// pdl_wait() the block's share of W is under way. It waits where the kernel leaves most room for the
// ones before and after it on the same multiprocessor:
// - in registers, as operands of the products. A lane takes eight consecutive k of a row, 16 bytes,
//   for two products: the order of K inside a product is free as long as both sides agree. So x, which
//   passes through registers on its way to shared memory, is put down in that order: of the four words
//   of a piece, word w goes to unit w of the four 16-byte units of its 32 k, next to those of its
//   neighbours.
// - in shared memory as rows (bulk copies), from where ldmatrix brings the operands.
// - in shared memory as tiles of 64 columns (the copy engine, in the order of use), where products read
//   them; the first ones do while the rest is on its way.
// Rows of x are swizzled as the products want them; stores meet no bank twice in either order.
//
// A warpgroup goes through its columns of x in steps of 64, two steps in shared memory, the loads of
// the next ones under way. Tiles start at different steps, as all blocks read the same x.
#pragma once

#include <cstdint>

#include "few_rows.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace flashrt {

template <class S, class Op>
class WarpgroupProduct;

// kTokens: n of the products; kSteps: 64-wide pieces of K a warpgroup; kAhead: steps of x in flight.
template <int kTokens_, int kSteps_, int kSplit_, From kWeights_, int kAhead_, bool kNorm_,
          class Weight_ = bf16>
struct WarpgroupShape {
  template <class Op>
  using Product = WarpgroupProduct<WarpgroupShape, Op>;
  using Weight = Weight_;
  using Piece = WeightPiece<Weight>;  // eight neighbours in a row of W
  static constexpr bool kWhole = sizeof(Weight) == 1;
  static constexpr int kTokens = kTokens_, kSteps = kSteps_, kSplit = kSplit_, kAhead = kAhead_;
  static constexpr bool kRegisters = kWeights_ == From::kRegisters, kBulk = kWeights_ == From::kBulk;
  static constexpr bool kTiles = kWeights_ == From::kTiles, kNorm = kNorm_;
  static constexpr bool kCentred = false, kSteady = false, kBlockScope = false;
  static constexpr bool kOwnStays = false;
  // The last two carry shift.
  static constexpr int kSpecial = kNorm ? 2 : 0, kMaxTokens = kTokens - kSpecial;
  static constexpr int kRows = 64, kGroups = 2, kThreads = 128 * kGroups;
  static constexpr int kGroupDepth = 64 * kSteps, kDepth = kGroupDepth * kGroups;
  static constexpr int kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  // Widened under the products of the step before, where there are registers for two steps' operands.
  static constexpr bool kEager = kWhole && kTokens < 64 && !(kNorm && kSteps > 2);
  static_assert(kRegisters || !kWhole, "int8 waits in registers, where it is widened");
  static_assert(kTokens % 8 == 0 && kItems % kSplit == 0 && kAhead <= kSteps, "whole parts");
  static constexpr int kStages = kSteps < 2 ? kSteps : 2;
  static constexpr int kPieces = (kTokens + 15) / 16;  // 16-byte pieces of x a lane takes in a step

  // Shared memory. Partial sums take the place of x, or of W; pitches keep what is read or written
  // together apart in the banks.
  static constexpr int kPitch = kRows + 4, kPartial = kTokens * kPitch * 4;
  static constexpr int kPartRows = kRows, kParts = kGroups;
  static constexpr int kSquareParts = kRegisters ? 2 * kGroups : kGroups;
  static constexpr int kStageBytes = kTokens * 128, kXBytes = kGroups * kStages * kStageBytes;
  static constexpr int kRowBytes = kDepth * 2 + 16, kTileBytes = kRows * 128;
  static constexpr int kWeights = kXBytes, kPartials = kRegisters ? 0 : kWeights;
  static constexpr int kFetched =
      kWeights + (kTiles ? kRows * kDepth * 2 : kBulk ? kRows * kRowBytes : 0);
  static constexpr int kSummed = kPartials + kGroups * kPartial;
  static constexpr int kScale = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kShift = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kVector = kDepth * 2;
  static constexpr int kSquares = kShift + kSpecial * kVector;
  static constexpr int kTotals = kSquares + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceived = kTotals;
  static constexpr int kReceivedSquares = kReceived + (kSplit > 1 ? kSplit * kTokens * kOwn * 16 : 0);
  static constexpr int kBarriers =
      kReceivedSquares + (kSplit > 1 && kNorm ? kSplit * kTokens * 4 : 0);
  static constexpr int kSharedBytes = (kBarriers + (1 + (kTiles ? kSteps : kGroups)) * 8 + 15) / 16 * 16;
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class WarpgroupProduct : FewRows<S, Op> {
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::floats, Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_;
  using Base::thread_, Base::tile_, Base::warp_, Base::kWeightsCame;

 public:
  __device__ __forceinline__ WarpgroupProduct(const FewRowsInput<typename S::Weight>& input, Op& op)
      : Base(input, op) {
    group_ = warp_ / 4;
    slab_ = warp_ % 4;  // of 16 rows of W
    row_ = lane_ / 4;
    part_ = lane_ % 4;
    if constexpr (S::kRegisters) {
      piece_k_ = slab_ % 2 * 32 + part_ * 8;
      first_token_ = slab_ / 2 * 8 + row_;
    } else {
      piece_k_ = lane_ % 8 * 8;
      first_token_ = slab_ * 4 + lane_ / 8;
    }
    x_ = in_.x + first_token_ * in_.x_stride + split_ * S::kDepth + group_ * S::kGroupDepth + piece_k_;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    set_barriers();
    if constexpr (S::kRegisters) fetch_weights();
    if constexpr (S::kBulk) fetch_rows();
    if constexpr (S::kNorm) {
      float scale[8];
      this->load_scale(scale);
      this->fetch_shift();
      this->leave_scale(scale);
    }
    if constexpr (S::kNorm || S::kTiles) __syncthreads();
    if constexpr (S::kSplit > 1) cluster_wait();
    pdl_wait();
    multiply();
    this->collect();
  }

 private:
  // Which 64 columns of a warpgroup's share a step takes, and where in the block's they begin.
  __device__ __forceinline__ uint32_t columns(int step) const { return (step + tile_) % S::kSteps; }
  __device__ __forceinline__ uint32_t first_k(uint32_t group, uint32_t columns) const {
    return group * S::kGroupDepth + columns * 64;
  }

  // The block's row at row `row` of the product: two rows of a thread are neighbours.
  __device__ __forceinline__ static uint32_t weight_row(uint32_t row) {
    return row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
  }
  __device__ __forceinline__ const typename S::Weight* weight_address(uint32_t row) const {
    const uint32_t local = weight_row(row);
    const int from = op_.weight_row(tile_, local / 8, local % 8);
    return in_.weight + static_cast<size_t>(from) * S::kInner + split_ * S::kDepth;
  }

  // The barriers, and what one thread starts.
  __device__ __forceinline__ void set_barriers() const {
    if (thread_ == 0) {
      if constexpr (S::kSplit > 1) this->expect_pushes();
      if constexpr (S::kTiles) {
#pragma unroll
        for (int i = 0; i < S::kSteps; ++i) {
          expect_bytes(barrier(kWeightsCame + i), S::kGroups * S::kTileBytes);
        }
        fetch_tiles();
      }
      if constexpr (S::kBulk) {
#pragma unroll
        for (int i = 0; i < S::kGroups; ++i) {
          expect_bytes(barrier(kWeightsCame + i), S::kRows * S::kGroupDepth * 2);
        }
      }
    }
    __syncwarp();
    if constexpr (S::kSplit > 1) cluster_arrive_relaxed();
    if constexpr (S::kBulk) __syncthreads();
  }

  // By the thread that made the barriers, as the copies need them.
  __device__ __forceinline__ void fetch_tiles() const {
#pragma unroll
    for (int i = 0; i < S::kGroups * S::kSteps; ++i) {
      const uint32_t group = i % S::kGroups, columns = this->columns(i / S::kGroups);
      copy_tile(*in_.tiles, shared_address(tile(group, columns)),
                shared_address(barrier(kWeightsCame + columns)),
                split_ * S::kDepth + first_k(group, columns), tile_ * S::kRows);
    }
  }
  __device__ __forceinline__ unsigned char* tile(uint32_t group, uint32_t columns) const {
    return shared_ + S::kWeights + (group * S::kSteps + columns) * S::kTileBytes;
  }

  // A warpgroup's half of the rows, by one of its warps.
  __device__ __forceinline__ void fetch_rows() const {
    if (slab_ != 0) return;
#pragma unroll
    for (int row = lane_; row < S::kRows; row += 32) {
      const int k = group_ * S::kGroupDepth;
      copy_run(weight_place(row, k), weight_address(row) + k, S::kGroupDepth * 2,
               barrier(kWeightsCame + group_));
    }
    __syncwarp();
  }
  __device__ __forceinline__ unsigned char* weight_place(uint32_t row, uint32_t k) const {
    return shared_ + S::kWeights + row * S::kRowBytes + k * 2;
  }

  __device__ __forceinline__ void fetch_weights() {
    const typename S::Weight* low = weight_address(slab_ * 16 + row_) + part_ * 8;
    const typename S::Weight* high = weight_address(slab_ * 16 + 8 + row_) + part_ * 8;
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        weights_[step][chunk][0] = load_weights(low + first_k(group_, columns(step)) + chunk * 32);
        weights_[step][chunk][1] = load_weights(high + first_k(group_, columns(step)) + chunk * 32);
      }
    }
  }

  __device__ __forceinline__ void fetch_tokens(int step, uint32_t columns) {
    const bf16* p = x_ + columns * 64;
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i, p += 16 * in_.x_stride) {
      load_fresh(tokens_[step % S::kAhead][i], p, first_token_ + 16 * i < in_.tokens);
    }
  }

  // Puts a step of x, conditioned, where the products read it.
  __device__ __forceinline__ void stage_tokens(int step, uint32_t columns,
                                               float (&squares)[S::kPieces]) const {
    const uint32_t k = first_k(group_, columns) + piece_k_;
    uint4 scale = {};
    if constexpr (S::kNorm) scale = *reinterpret_cast<const uint4*>(shared_ + S::kScale + k * 2);
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      const int token = first_token_ + 16 * i;
      if (16 * i + 16 > S::kTokens && token >= S::kTokens) break;
      uint4 x = tokens_[step % S::kAhead][i];
      if constexpr (S::kNorm) {
        add_squares(squares[i], x);
        x = this->grow(x, scale);
        if (i == S::kPieces - 1 && token >= S::kTokens - S::kSpecial) {
          x = *reinterpret_cast<const uint4*>(this->shift_row(token - S::kTokens + S::kSpecial) + k * 2);
        }
      }
      put(stage(step) + first_token_ * 128 + i * 2048, first_token_ & 7, x);
    }
  }

  // A piece of x into its row of 128 bytes; `turn` is what the row's units are swizzled by.
  __device__ __forceinline__ void put(unsigned char* row, uint32_t turn, const uint4& x) const {
    const uint32_t unit = piece_k_ / 8;
    if constexpr (S::kRegisters) {
      const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint32_t*>(row + ((unit & 4) ^ turn ^ i) * 16 + part_ * 4) = words[i];
      }
    } else {
      *reinterpret_cast<uint4*>(row + (unit ^ turn) * 16) = x;
    }
  }
  __device__ __forceinline__ unsigned char* stage(int step) const {
    return shared_ + (group_ * S::kStages + step % S::kStages) * S::kStageBytes;
  }

  __device__ __forceinline__ static void add_squares(float& sum, const uint4& x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = unpack2(words[i]);
      sum = fmaf(v.x, v.x, sum);
      sum = fmaf(v.y, v.y, sum);
    }
    settle(sum);  // now, so that x takes no registers until the sum is needed
  }

  __device__ __forceinline__ void multiply() {
    float sums[S::kTokens / 2];
    float squares[S::kPieces] = {};
    uint32_t columns = this->columns(0);
#pragma unroll
    for (int step = 0; step < S::kAhead; ++step) fetch_tokens(step, this->columns(step));
    if constexpr (S::kWhole) widening_.begin();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      stage_tokens(step, columns, squares);
      if (step + S::kAhead < S::kSteps) {
        fetch_tokens(step + S::kAhead, (columns + S::kAhead) % S::kSteps);
      }
      publish_shared();
      if constexpr (S::kTiles) wait_bytes(barrier(kWeightsCame + columns));
      if (S::kBulk && step == 0) wait_bytes(barrier(kWeightsCame + group_));
      uint32_t w[4][4];
      if constexpr (S::kEager) load_operands(step, columns, w);  // under the products of before
      // When all have waited here for the products of the step before, its place is free again.
      if (step > 0) wgmma_wait<0>();
      if constexpr (!S::kTiles && !S::kEager) load_operands(step, columns, w);
      wgmma_sync(1 + group_, 128);
      wgmma_begin();
      const uint64_t x = wgmma_tile(shared_address(stage(step)));
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int keep = step > 0 || part > 0;
        if constexpr (S::kTiles) {
          const uint64_t rows = wgmma_tile(shared_address(tile(group_, columns)));
          Wgmma<S::kTokens>::run(sums, wgmma_step(rows, part), wgmma_step(x, part), keep);
        } else {
          WgmmaRegisters<S::kTokens>::run(sums, w[part], wgmma_step(x, part), keep);
        }
      }
      wgmma_commit();
      columns = (columns + 1) % S::kSteps;
      settle(columns);  // one register for all steps' addresses
    }
    if constexpr (S::kNorm) leave_squares(squares);
    this->prepare();
    this->fetch();
    wgmma_wait<0>();
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
  }

  // A step's operands of four products, 16 columns each.
  __device__ __forceinline__ void load_operands(int step, uint32_t columns,
                                                uint32_t (&w)[4][4]) const {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      if constexpr (S::kBulk) {
        const uint32_t row = slab_ * 16 + lane_ % 16;
        const uint32_t k = first_k(group_, columns) + part * 16 + lane_ / 16 * 8;
        ldmatrix_x4(w[part], shared_address(weight_place(row, k)));
      } else {
        const uint4 low = widening_(weights_[step][part / 2][0]);
        const uint4 high = widening_(weights_[step][part / 2][1]);
        const bool second = part % 2;
        w[part][0] = second ? low.z : low.x, w[part][1] = second ? high.z : high.x;
        w[part][2] = second ? low.w : low.y, w[part][3] = second ? high.w : high.y;
      }
    }
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kTokens / 2]) const {
    float* target = floats(S::kPartials + group_ * S::kPartial) + slab_ * 16;
#pragma unroll
    for (int i = 0; i < S::kTokens / 4; ++i) {
      const int octet = i / 2, odd = i % 2, token = octet * 8 + part_ * 2 + odd;
      const bool keep = token < in_.tokens || (S::kNorm && token >= S::kTokens - S::kSpecial);
      const float2 v = {sums[octet * 4 + odd], sums[octet * 4 + 2 + odd]};
      if constexpr (S::kTiles) {
        store_shared_if(keep, target + token * S::kPitch + row_, v.x);
        store_shared_if(keep, target + token * S::kPitch + row_ + 8, v.y);
      } else {
        store_shared_if(keep, target + token * S::kPitch + row_ * 2, v);
      }
    }
  }

  __device__ __forceinline__ void leave_squares(const float (&squares)[S::kPieces]) const {
    const int part = S::kRegisters ? group_ * 2 + slab_ % 2 : group_;
#pragma unroll
    for (int i = 0; i < S::kPieces; ++i) {
      float sum = squares[i] + __shfl_xor_sync(0xffffffffu, squares[i], 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      if constexpr (!S::kRegisters) sum += __shfl_xor_sync(0xffffffffu, sum, 4);
      const int token = first_token_ + 16 * i;
      if (piece_k_ % (S::kRegisters ? 32 : 64) == 0 && token < S::kTokens) {
        floats(S::kSquares)[part * S::kTokens + token] = sum;
      }
    }
  }

  uint32_t group_, slab_, row_, part_;
  uint32_t piece_k_;  // where in a step the pieces of x are that this thread moves
  int first_token_;
  const bf16* x_;
  typename S::Piece weights_[S::kRegisters ? S::kSteps : 1][2][2];
  Widening widening_;
  uint4 tokens_[S::kAhead][S::kPieces] = {};
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
