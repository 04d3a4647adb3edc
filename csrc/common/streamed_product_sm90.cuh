// streamed_product_sm90: y = x W^T for up to 48 rows x [A, K], 64 in E4M3, and weights that are large for the
// chip (sm_90a): a block's share of W passes through a ring of tiles, so that the next kernel's first tiles
// are under way on the same multiprocessor while this one's last ones are used.
//
// Tokens take the 64-row side of a product, from registers, and kRows weight rows the n side, from
// shared memory: any multiple of eight, so that a weight's rows and splits of K make one block for
// nearly every multiprocessor. The copy engine brings tiles of 64 columns, of W before pdl_wait() and of
// x behind it, counted on one barrier. Two warpgroups take the steps of K in turn, each with tiles of
// its own which it fetches again when it has used them; nobody else is waited for.
//
// With kLate the next kernel may start when the last tiles are on their way, and not when this one begins:
// what it fetches ahead is then under way while this one ends, where weights are so many that nothing is
// won by having them earlier. Fewer than 48 rows leave warps of the 64-row side without work.
//
// E4M3 rows and weights are both read from shared memory, 128 columns a step; what a sum is multiplied by
// comes with them (FewRowsInput). Behind a norm they need its moments first (normed_product_sm90.cuh).
//
// With kSlim a block keeps its own sums where they lie: less shared memory, for a little more work. With
// fewer stages of x than of W (kTokenStages) each has barriers of
// its own.
//
// The fourth warp of a warpgroup would have tokens 48 to 63. With kNorm its rows are shift and gain of
// the norm, two of each, and the others' rows are conditioned on
// their way through registers. Sums of x and of its squares are made by the other pipes while the tensor
// cores have the warpgroup's product: as products they would wait for that, and the next step for them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "few_rows_by_tokens.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "row_moments.cuh"
#include "wgmma.cuh"

namespace flashrt {

template <class S, class Op>
class StreamedProduct;

// kRows of W and kSteps of 128 bytes of each a block, kSplit blocks in a cluster, kStages tiles in the ring.
template <int kRows_, int kSteps_, int kSplit_, int kStages_, bool kNorm_, int kMaxTokens_ = 48,
          bool kLate_ = false, int kTokenStages_ = kStages_, bool kSlim_ = false, class Weight_ = bf16>
struct StreamedShape {
  template <class Op>
  using Product = StreamedProduct<StreamedShape, Op>;
  using Weight = Weight_;
  static constexpr int kColumns = 128 / sizeof(Weight);  // of a step
  static constexpr bool kWhole = false, kNorm = kNorm_, kCentred = kNorm_, kSteady = true;
  static constexpr bool kBlockScope = false, kByTokens = false;
  static constexpr bool kOwnStays = kSlim_;
  static constexpr int kVectors = 2;  // of shift; those of gain are ones and what x is grown by
  static constexpr int kRows = kRows_, kSteps = kSteps_, kSplit = kSplit_, kStages = kStages_;
  static constexpr int kGroups = 2, kThreads = 128 * kGroups;
  static constexpr int kGroupRows = kRows;  // of W, those that a warpgroup multiplies by
  static constexpr bool kLate = kLate_;
  static constexpr int kTokenStages = kTokenStages_;
  static constexpr bool kApart = kTokenStages != kStages;
  static constexpr int kMaxTokens = kMaxTokens_, kTokens = kMaxTokens + (kNorm ? 4 : 0);
  static constexpr int kDepth = kColumns * kSteps, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  static_assert(sizeof(Weight) == 2 || !kNorm, "not with E4M3");
  static_assert(kRows % 8 == 0 && kItems % kSplit == 0, "whole items a block");
  // Operands in registers come by warps of 16 tokens, and the fourth warp may have shift and gain.
  static_assert(sizeof(Weight) == 1 ? kMaxTokens % 8 == 0 && kMaxTokens <= 64
                                    : kMaxTokens % 16 == 0 && kMaxTokens <= 48,
                "whole tiles, or whole warps");
  static_assert(!kLate || kStages < kSteps, "there are last tiles");
  static_assert(kSteps % kGroups == 0 && kStages % kGroups == 0 && kStages <= kSteps, "whole turns");

  // Shared memory. Partial sums take the place of the tiles; their pitch keeps the rows of a warp apart
  // in the banks.
  static constexpr int kPitch = kRows % 16 == 8 ? kRows : kRows + 8, kPartial = kTokens * kPitch * 4;
  static constexpr int kPartials = 0, kPartRows = kRows, kParts = kGroups, kSquareParts = kGroups;
  // Tiles of W that a stage takes, and where a block's are.
  static constexpr int kBoxes = 1;
  __device__ __forceinline__ static int box_row(int tile, int) { return tile * kRows; }
  static constexpr int kWeightBytes = kRows * 128, kTokenBytes = kMaxTokens * 128;
  static constexpr int kStageBytes = kWeightBytes + (kApart ? 0 : kTokenBytes);
  static constexpr int kStageStart = 0, kFetched = kStages * kWeightBytes + kTokenStages * kTokenBytes;
  static constexpr int kSummed = kParts * kPartial;
  static constexpr int kScale = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kVector = kDepth * 2 + 16;  // of rows that a warp reads at a time
  static constexpr int kShift = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kSquares = kShift + (kNorm ? kVectors * kVector : 0);
  static constexpr int kTotals = kSquares + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kFrom = kSplit - (kOwnStays ? 1 : 0);
  static constexpr int kReceived = kTotals + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kPushed = kSplit > 1 ? kFrom * kTokens * kOwn * PushedSums<Weight>::kBytes : 0;
  static constexpr int kReceivedSquares = kReceived + kPushed;
  static constexpr int kBarriers = kReceivedSquares + (kSplit > 1 && kNorm ? kFrom * kTokens * 8 : 0);
  static constexpr int kCounted = 1 + kStages + (kApart ? kTokenStages : 0);  // barriers
  static constexpr int kSharedBytes = (kBarriers + kCounted * 8 + 15) / 16 * 16;
  static_assert(kTokenStages % kGroups == 0 && kTokenStages <= kStages, "whole turns");
  static_assert(kStageBytes % 1024 == 0 && kBarriers % 8 == 0, "aligned");
};

// The same with blocks that finish some of the tokens each (few_rows_by_tokens.cuh).
template <class Shape>
struct ByTokens : Shape {
  template <class Op>
  using Product = StreamedProduct<ByTokens, Op>;
  static constexpr bool kByTokens = true;
  static constexpr int kLanes = Shape::kItems <= 8 ? 8 : Shape::kItems <= 16 ? 16 : 32;
  static constexpr int kOwnTokens = Shape::kMaxTokens / Shape::kSplit;
  static_assert(Shape::kSplit > 1 && !Shape::kNorm && Shape::kItems <= 32, "tokens to share out, in a warp");
  static_assert(Shape::kMaxTokens % Shape::kSplit == 0, "as much is pushed as of items");
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
using StreamedEnd = std::conditional_t<S::kByTokens, FewRowsByTokens<S, Op>, FewRows<S, Op>>;

template <class S, class Op>
class StreamedProduct : protected StreamedEnd<S, Op> {
 protected:
  using Base = StreamedEnd<S, Op>;
  using Base::barrier, Base::floats, Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_;
  using Base::thread_, Base::tile_, Base::warp_, Base::kWeightsCame;

 public:
  __device__ __forceinline__ StreamedProduct(const FewRowsInput<typename S::Weight>& input, Op& op)
      : Base(input, op) {
    group_ = warp_ / 4;
    slab_ = warp_ % 4;  // of 16 tokens
  }

  __device__ __forceinline__ void run() {
    [[maybe_unused]] typename Base::Centred condition;
    if constexpr (S::kNorm) condition = this->load_centred();
    if (thread_ == 0) {
      if constexpr (S::kSplit > 1) this->expect_pushes();
      begin();
    }
    __syncwarp();
    if constexpr (S::kSplit > 1) cluster_arrive_relaxed();
    this->prepare();
    if constexpr (S::kNorm) this->leave_centred(condition);
    __syncthreads();  // the barriers and what conditions x
    if constexpr (S::kSplit > 1) cluster_wait();
    pdl_wait();
    if (thread_ == 0) fetch_first_tokens();
    if constexpr (S::kNorm) {
      if (in_.moments) merge_moments();
    }
    this->fetch();
    multiply();
    this->collect();
  }

 protected:
  __device__ __forceinline__ unsigned char* stage(int step) const {
    return shared_ + S::kStageStart + step % S::kStages * S::kStageBytes;
  }
  // Which 64 columns a step takes with kLate: tiles begin with different ones, as all read the same x.
  __device__ __forceinline__ int columns(int step) const {
    const int shifted = step + tile_ % S::kSteps;
    return shifted < S::kSteps ? shifted : shifted - S::kSteps;
  }
  __device__ __forceinline__ uint32_t full(int step) const {
    return shared_address(barrier(kWeightsCame + step % S::kStages));
  }

  __device__ __forceinline__ unsigned char* tokens(int step) const {
    if constexpr (!S::kApart) return stage(step) + S::kWeightBytes;
    return shared_ + S::kStages * S::kWeightBytes + step % S::kTokenStages * S::kTokenBytes;
  }
  __device__ __forceinline__ uint32_t tokens_full(int step) const {
    if constexpr (!S::kApart) return full(step);
    return shared_address(barrier(kWeightsCame + S::kStages + step % S::kTokenStages));
  }

  // The barriers, and the first tiles of W, by the thread that made them.
  __device__ __forceinline__ void begin() const {
    prefetch_map(*in_.tiles);
    prefetch_map(*in_.rows);
#pragma unroll
    for (int step = 0; step < S::kStages; ++step) barrier_init(full(step), 1);
    if constexpr (S::kApart) {
#pragma unroll
      for (int step = 0; step < S::kTokenStages; ++step) barrier_init(tokens_full(step), 1);
    }
    barrier_init_fence();
    if constexpr (S::kApart) {
#pragma unroll
      for (int step = 0; step < S::kTokenStages; ++step) {
        barrier_expect(tokens_full(step), S::kTokenBytes);
      }
    }
#pragma unroll
    for (int step = 0; step < S::kStages; ++step) {
      barrier_expect(full(step), S::kStageBytes);
      fetch_weights(step);
    }
    // What is left of a short share comes as far as the second-level cache.
    if constexpr (S::kLate && S::kSteps <= 2 * S::kStages) {
      for (int step = S::kStages; step < S::kSteps; ++step) {
        prefetch_tile(*in_.tiles, split_ * S::kDepth + columns(step) * S::kColumns, tile_ * S::kRows);
      }
    }
  }
  __device__ __forceinline__ void fetch_weights(int step) const {
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      copy_tile(*in_.tiles, shared_address(stage(step) + box * (S::kWeightBytes / S::kBoxes)), full(step),
                split_ * S::kDepth + (S::kLate ? columns(step) : step) * S::kColumns,
                S::box_row(tile_, box));
    }
  }
  __device__ __forceinline__ void fetch_tokens(int step) const {
    copy_tile(*in_.rows, shared_address(tokens(step)), tokens_full(step),
              split_ * S::kDepth + (S::kLate ? columns(step) : step) * S::kColumns, 0);
  }

  __device__ __forceinline__ void fetch_first_tokens() const {
#pragma unroll
    for (int step = 0; step < S::kTokenStages; ++step) fetch_tokens(step);
  }

  __device__ __forceinline__ void multiply() {
    float sums[S::kRows / 2];
    float squares[2] = {}, totals[2] = {};  // of a lane's share of its two tokens
#pragma unroll 1
    for (int turn = 0; turn < S::kSteps / S::kGroups; ++turn) {
      const int step = turn * S::kGroups + group_;
      barrier_wait(full(step), step / S::kStages & 1);
      if constexpr (S::kApart) barrier_wait(tokens_full(step), step / S::kTokenStages & 1);
      if (!S::kLate && turn == 0) pdl_trigger();  // x has come: what the next kernel fetches is not in its way
      multiply_step(step, sums, turn > 0);
      if constexpr (S::kNorm) {
        if (slab_ < S::kMaxTokens / 16 && !in_.moments) add_moments(step, squares, totals);
      }
      wgmma_wait<0>();
      if (step + S::kTokenStages < S::kSteps) {
        wgmma_sync(1 + group_, 128);  // the warpgroup has read both tiles
        if (thread_ % 128 == 0) {
          if constexpr (S::kApart) barrier_expect(tokens_full(step), S::kTokenBytes);
          if (step + S::kStages < S::kSteps) {
            barrier_expect(full(step), S::kStageBytes);
            fetch_weights(step + S::kStages);
          }
          fetch_tokens(step + S::kTokenStages);
        }
      }
      if constexpr (S::kLate) {
        if (turn == (S::kSteps - S::kStages) / S::kGroups - 1) pdl_trigger();
      }
    }
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
    if constexpr (S::kNorm) {
      if (!in_.moments) leave_moments(squares, totals);
    }
  }

  // The four products of a step, onto sums of those before with `keep`.
  __device__ __forceinline__ void multiply_step(int step, float (&sums)[S::kGroupRows / 2], bool keep) const {
    const int first_row = S::kGroupRows < S::kRows ? group_ * S::kGroupRows : 0;
    const uint64_t w = wgmma_tile(shared_address(stage(step) + first_row * 128));
    if constexpr (Base::kNarrow) {
      const uint64_t x = wgmma_tile(shared_address(tokens(step)));
      wgmma_begin();
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaE4m3<S::kGroupRows>::run(sums, wgmma_step(x, part), wgmma_step(w, part), keep || part > 0);
      }
    } else {
      uint32_t x[4][4];
      load_operands(step, x);
      wgmma_begin();
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaRegisters<S::kRows>::run(sums, x[part], wgmma_step(w, part), keep || part > 0);
      }
    }
    wgmma_commit();
  }

  // A step's operands of four products, 16 columns each. All that a warp reads is on its way before the
  // first is used: the products of a warpgroup wait for the last of its warps.
  __device__ __forceinline__ void load_operands(int step, uint32_t (&x)[4][4]) const {
    int k = step * 64 + lane_ % 4 * 2;
    if constexpr (S::kLate) k += (columns(step) - step) * 64;
    if (slab_ < S::kMaxTokens / 16) {
      load_tokens(step, k, x);
      return;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) x[part][0] = x[part][1] = x[part][2] = x[part][3] = 0u;
    if constexpr (S::kNorm) {
      if (slab_ == 3 && lane_ < 16) load_vectors(k, x);
    }
  }

  __device__ __forceinline__ void load_tokens(int step, int k, uint32_t (&x)[4][4]) const {
    const int row = slab_ * 16 + lane_ % 16;
    const unsigned char* tile = tokens(step) + row * 128;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      ldmatrix_x4(x[part], shared_address(tile + ((part * 2 + lane_ / 16) ^ (row & 7)) * 16));
    }
    if constexpr (S::kNorm) {
      uint32_t low[4], high[4];
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const unsigned char* scale = shared_ + S::kScale + (k + part * 16) * 2;
        low[part] = *reinterpret_cast<const uint32_t*>(scale);
        high[part] = *reinterpret_cast<const uint32_t*>(scale + 16);
      }
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        x[part][0] = grow2(x[part][0], low[part]), x[part][1] = grow2(x[part][1], low[part]);
        x[part][2] = grow2(x[part][2], high[part]), x[part][3] = grow2(x[part][3], high[part]);
      }
    }
  }

  // Shift as two rows and gain as two: ones, and what x is grown by, whose sum it is exactly. A row of them
  // for each four lanes.
  __device__ __forceinline__ void load_vectors(int k, uint32_t (&x)[4][4]) const {
    constexpr uint32_t kOnes = 0x3f803f80u;
    const int row = lane_ / 4;
    const unsigned char* v = (row < 2 ? this->vector_row(row) : shared_ + S::kScale) + k * 2;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const uint32_t low = *reinterpret_cast<const uint32_t*>(v + part * 32);
      const uint32_t high = *reinterpret_cast<const uint32_t*>(v + part * 32 + 16);
      x[part][0] = row == 2 ? kOnes : low;
      x[part][2] = row == 2 ? kOnes : high;
    }
  }

  // Those that the kernel in front has left, while x is on its way.
  __device__ __forceinline__ void merge_moments() const {
    static_assert(S::kMaxTokens * 4 <= S::kThreads, "four lanes a token");
    const int token = thread_ / 4;
    SlabMoments slabs;
    slabs.load(in_.moments, in_.slabs, min(token, in_.tokens - 1));
    const float2 merged = slabs.merge(in_.slabs, S::kInner, in_.eps);
    if (token < in_.tokens && thread_ % 4 == 0) this->merged()[token] = merged;
  }

  // Of a step whose operands are conditioned already: its tile is there until it is fetched again.
  __device__ __forceinline__ void add_moments(int step, float (&squares)[2], float (&totals)[2]) const {
    const int row = slab_ * 16 + lane_ % 16;
    const unsigned char* tile = tokens(step) + row * 128;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      uint32_t x[4];  // two columns of each token, and two more
      ldmatrix_x4(x, shared_address(tile + ((part * 2 + lane_ / 16) ^ (row & 7)) * 16));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 v = unpack2(x[i]);
        squares[i % 2] = fmaf(v.y, v.y, fmaf(v.x, v.x, squares[i % 2]));
        totals[i % 2] += v.x + v.y;
      }
    }
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kRows / 2]) const {
    float* target = floats(S::kPartials + group_ * S::kPartial) + lane_ % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int token = slab_ * 16 + half * 8 + lane_ / 4;
      bool keep = token < S::kMaxTokens ? token < in_.tokens : token < S::kTokens;
      if constexpr (S::kMaxTokens < 48) {
        if (slab_ == 3) token += S::kMaxTokens - 48;  // what is no row of x
        keep = slab_ == 3 ? token < S::kTokens : token < in_.tokens;
      }
#pragma unroll
      for (int j = 0; j < S::kRows / 8; ++j) {
        store_shared_if(keep, target + token * S::kPitch + j * 8,
                        {sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]});
      }
    }
  }

  __device__ __forceinline__ void leave_moments(const float (&squares)[2],
                                                const float (&totals)[2]) const {
    if (slab_ >= S::kMaxTokens / 16) return;  // no rows of x
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float square = lane_sum<4>(squares[half]);
      const float total = lane_sum<4>(totals[half]);
      const int at = group_ * S::kTokens + slab_ * 16 + half * 8 + lane_ / 4;
      if (lane_ % 4 != 0) continue;
      floats(S::kSquares)[at] = square;
      floats(S::kTotals)[at] = total;
    }
  }

  int group_, slab_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
