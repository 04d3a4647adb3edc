// direct_product_sm90: streamed_product with x from L2 straight into registers (sm_90a). The ring then
// holds tiles of W only: half of a block's share of W or more is there before pdl_wait(), where x takes a
// third of every stage of streamed_product. Nothing is read by ldmatrix.
//
// A lane takes eight consecutive k of a row of x, 16 bytes, as its operands of two products. So the
// columns of W are packed in that order: of every 32, place 16 s + 8 h + 2 c + j holds column
// 8 c + 4 s + 2 h + j (s, h, j of 2, c of 4).
//
// int8 weights wait in the ring as they are, in half the room, and are widened on their way to a tile of
// each warpgroup, from where the tensor cores take them.
#pragma once

#include <cstdint>

#include "streamed_product_sm90.cuh"

namespace flashrt {

template <class S, class Op>
class DirectProduct;

// Asks for this block's share of a run of bytes into L2: what a kernel further on reads. One thread.
__device__ __forceinline__ void ask_share(const void* next, int bytes) {
  const int share = (bytes / 16 + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x) * 16;
  const int first = static_cast<int>(blockIdx.x) * share, size = min(share, bytes - first);
  if (size > 0) prefetch_run(static_cast<const unsigned char*>(next) + first, size);
}

// The weight of a kernel further on, asked for into L2 behind pdl_wait() by as many blocks as it will
// have: tiles of `rows` by 64 columns, `steps` of them a block, `split` blocks side by side. rows 0: none.
struct Ahead {
  const CUtensorMap* tiles;
  int rows, split, steps;
};

// As StreamedShape; kAhead: turns of x under way. kMost: tokens there is room for.
template <int kRows_, int kSteps_, int kSplit_, int kStages_, bool kNorm_, int kAhead_, class Weight_ = bf16,
          int kMost_ = 48>
struct DirectShape {
  template <class Op>
  using Product = DirectProduct<DirectShape, Op>;
  using Weight = Weight_;
  static constexpr bool kWhole = sizeof(Weight) == 1;
  static constexpr bool kNorm = kNorm_, kCentred = kNorm_, kSteady = true, kLean = true, kLate = false;
  static constexpr bool kAskL2 = true, kTurned = true;
  static constexpr int kRows = kRows_, kSteps = kSteps_, kSplit = kSplit_, kStages = kStages_;
  static constexpr int kAhead = kAhead_, kGroups = 2, kThreads = 128 * kGroups;
  static constexpr int kMaxTokens = kMost_, kTokens = kNorm ? 52 : kMost_;
  static constexpr int kDepth = 64 * kSteps, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4, kOwn = kItems / kSplit;
  static_assert(!kNorm || kMost_ == 48, "the vectors are tokens 48 to 51");
  static_assert(kRows % 8 == 0 && kItems % kSplit == 0, "whole items a block");
  static_assert(kSteps % (kGroups * kAhead) == 0, "whole rounds");
  static_assert(kStages % kGroups == 0 && kStages <= kSteps, "stages of a group are its own");

  static constexpr int kPitch = kRows % 16 == 8 ? kRows : kRows + 8, kPartial = kTokens * kPitch * 4;
  static constexpr int kPartials = 0, kPartRows = kRows, kParts = kGroups, kSquareParts = kGroups;
  static constexpr int kBoxes = 1;
  __device__ __forceinline__ static int box_row(int tile, int) { return tile * kRows; }
  static constexpr int kWeightBytes = kRows * 64 * sizeof(Weight), kStageBytes = kWeightBytes;
  static constexpr int kTileBytes = kRows * 128;  // of widened weights, one a warpgroup
  static constexpr int kStageStart = kWhole ? kGroups * kTileBytes : 0;
  static constexpr int kFetched = kStageStart + kStages * kStageBytes, kSummed = kParts * kPartial;
  static constexpr int kScale = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kVector = kDepth * 2 + 64;  // of four rows that half a warp reads at a time
  static constexpr int kShift = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kSquares = kShift + (kNorm ? 4 * kVector : 0);
  static constexpr int kTotals = kSquares + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceived = kTotals + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceivedSquares = kReceived + (kSplit > 1 ? kSplit * kTokens * kOwn * 16 : 0);
  static constexpr int kBarriers = kReceivedSquares + (kSplit > 1 && kNorm ? kSplit * kTokens * 8 : 0);
  static constexpr int kSharedBytes = (kBarriers + (1 + kStages) * 8 + 15) / 16 * 16;
  static_assert(kStageBytes % (kWhole ? 512 : 1024) == 0 && kTileBytes % 1024 == 0, "swizzled");
  static_assert(kBarriers % 8 == 0 && kReceived % 16 == 0, "aligned");
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class DirectProduct : StreamedProduct<S, Op> {
  using Base = StreamedProduct<S, Op>;
  using Base::barrier, Base::full, Base::group_, Base::in_, Base::lane_, Base::shared_;
  using Base::slab_, Base::split_, Base::thread_, Base::kPushed;
  static constexpr int kTurns = S::kSteps / S::kGroups;
  static constexpr int kChains = S::kRows > 72 ? 1 : 2;  // of sums of squares, while there are registers
  using Pieces = uint4[2][2];  // of a turn: 32 columns each, rows eight apart

 public:
  __device__ __forceinline__ DirectProduct(const FewRowsInput<typename S::Weight>& input, Op& op)
      : Base(input, op) {
    row_ = slab_ * 16 + lane_ / 4;
    x_ = in_.x + static_cast<size_t>(row_) * in_.x_stride + split_ * S::kDepth + lane_ % 4 * 8;
  }

  __device__ __forceinline__ void run(const Ahead& ahead) {
    pdl_trigger();
    this->probe(0);
    if (thread_ == 0) {
      if constexpr (S::kSplit > 1) this->expect_pushes();
      this->begin();
    }
    __syncwarp();
    if constexpr (S::kSplit > 1) cluster_arrive();
    if constexpr (S::kNorm) this->fetch_centred();
    __syncthreads();  // the barriers and what conditions x
    if constexpr (S::kSplit > 1) cluster_wait();
    this->probe(1);
    pdl_wait();
    this->probe(2);
    if (thread_ >= 224 && ahead.rows > 0) {  // the last warp has no rows of x
      const int block = blockIdx.x;
      if (lane_ < ahead.steps) {
        prefetch_tile(*ahead.tiles, (block % ahead.split * ahead.steps + lane_) * 64,
               block / ahead.split * ahead.rows);
      }
      __syncwarp();
    }
    multiply();
    this->collect();
  }

 private:
  // Where the columns begin of a turn so many turns behind one.
  __device__ __forceinline__ static int behind(int at, int turns) {
    const int next = at + 64 * S::kGroups * turns;
    return next < S::kDepth ? next : next - S::kDepth;
  }

  __device__ __forceinline__ void fetch_turn(int at, Pieces& x) const {
    const bf16* p = x_ + at;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_ + 8 * half;
        load_fresh(x[block][half], p + block * 32 + half * 8 * in_.x_stride,
                   row < S::kMaxTokens && row < in_.tokens);
      }
    }
  }

  // kAhead turns are one round of a loop, so that the code is small: it is run once a launch.
  __device__ __forceinline__ void multiply() {
    float sums[S::kRows / 2];
    float squares[kChains][4] = {}, totals[4] = {};
    Pieces x[S::kAhead] = {};
    int at = this->turned(group_);
#pragma unroll
    for (int slot = 0; slot < S::kAhead; ++slot) fetch_turn(behind(at, slot), x[slot]);
    if constexpr (S::kWhole) widening_.begin();
#pragma unroll 1
    for (int round = 0; round < kTurns; round += S::kAhead) {
#pragma unroll
      for (int slot = 0; slot < S::kAhead; ++slot) {
        const int step = (round + slot) * S::kGroups + group_;
        const bool more = round + S::kAhead < kTurns;
        uint32_t a[4][4];
        if constexpr (S::kNorm && S::kWhole) add_turn(squares, totals, x[slot]);
        load_operands(at, x[slot], a);
        if (S::kWhole && more) fetch_turn(behind(at, S::kAhead), x[slot]);
        const uint32_t place = static_cast<uint32_t>(step) % S::kStages;
        barrier_wait(full(step), step / S::kStages & 1);
        if (round + slot == 0) this->probe(3);
        if (round + slot == kTurns - 1) this->probe(4);
        const unsigned char* tile = shared_ + S::kStageStart + place * S::kStageBytes;
        if constexpr (S::kWhole) {
          if (round + slot > 0) wgmma_sync(1 + group_, 128);  // all have multiplied with the tile
          widen(tile);
          publish_shared();
          wgmma_sync(1 + group_, 128);
          refill(step);
          tile = shared_ + group_ * S::kTileBytes;
        }
        const uint64_t w = wgmma_tile(shared_address(tile));
        wgmma_begin();
#pragma unroll
        for (int part = 0; part < 4; ++part) {
          WgmmaRegisters<S::kRows>::run(sums, a[part], wgmma_step(w, part), round + slot + part > 0);
        }
        wgmma_commit();
        if constexpr (S::kNorm && !S::kWhole) add_turn(squares, totals, x[slot]);  // under the products
        if (!S::kWhole && more) fetch_turn(behind(at, S::kAhead), x[slot]);
        at = behind(at, 1);
        wgmma_wait<0>();
        if constexpr (!S::kWhole) {
          if (step + S::kStages < S::kSteps) {
            wgmma_sync(1 + group_, 128);  // the warpgroup has read the tile
            refill(step);
          }
        }
      }
    }
    this->probe(5);
    this->prepare();
    this->fetch();
    __syncthreads();  // nobody reads what lies where the sums go
    this->leave_partials(sums);
    if constexpr (S::kNorm) {
      if constexpr (kChains == 2) {
#pragma unroll
        for (int i = 0; i < 4; ++i) squares[0][i] += squares[1][i];
      }
      this->leave_moments(squares[0], totals);
    }
  }

  __device__ __forceinline__ void refill(int step) const {
    if (thread_ % 128 == 0 && step + S::kStages < S::kSteps) {
      barrier_expect(full(step), S::kStageBytes);
      this->fetch_weights(step + S::kStages);
    }
  }

  // A tile of int8, rows of 64 bytes, to the warpgroup's tile of bf16: sixteen weights at a time.
  __device__ __forceinline__ void widen(const unsigned char* tile) const {
    unsigned char* target = shared_ + group_ * S::kTileBytes;
    constexpr int kUnrolled = S::kNorm && S::kRows > 72 ? 1 : 3;  // while there are registers
#pragma unroll kUnrolled
    for (int i = 0; i < S::kRows * 4; i += 128) {
      const int piece = i + thread_ % 128, row = piece / 4, unit = piece % 4;
      if (S::kRows % 32 != 0 && piece >= S::kRows * 4) break;
      const uint4 whole =
          *reinterpret_cast<const uint4*>(tile + row * 64 + (unit ^ (row / 2 & 3)) * 16);
      unsigned char* out = target + row * 128;
      *reinterpret_cast<uint4*>(out + ((2 * unit) ^ (row & 7)) * 16) = widening_(uint2{whole.x, whole.y});
      *reinterpret_cast<uint4*>(out + ((2 * unit + 1) ^ (row & 7)) * 16) =
          widening_(uint2{whole.z, whole.w});
    }
  }

  // A turn's operands of four products, 16 columns each.
  __device__ __forceinline__ void load_operands(int at, const Pieces& x, uint32_t (&a)[4][4]) const {
    const int k = at + lane_ % 4 * 8;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint4 low = x[block][0], high = x[block][1];
      if constexpr (S::kNorm) {
        if (slab_ == 3) {
          if (lane_ < 16) {
            low = *reinterpret_cast<const uint4*>(this->vector_row(lane_ / 4) + (k + block * 32) * 2);
          }
        } else {
          const uint4 scale = *reinterpret_cast<const uint4*>(shared_ + S::kScale + (k + block * 32) * 2);
          low = this->grow(low, scale), high = this->grow(high, scale);
        }
      }
      const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[2 * block][i] = first[i], a[2 * block + 1][i] = second[i];
    }
  }

  // The moments of a turn's x as it was.
  __device__ __forceinline__ void add_turn(float (&squares)[kChains][4], float (&totals)[4],
                                           const Pieces& x) const {
    if (slab_ == 3) return;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const uint4 &low = x[block][0], &high = x[block][1];
      this->add_moments(squares[block % kChains], totals, {low.x, high.x, low.y, high.y});
      this->add_moments(squares[block % kChains], totals, {low.z, high.z, low.w, high.w});
    }
  }

  const bf16* x_;
  int row_;
  Widening widening_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
