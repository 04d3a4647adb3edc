// four_bit_product_sm90: y = x W^T for a few rows x [A, K] and weights of four bits with a scale for
// each run of 128 in a row (sm_90a), bound by the weights' bytes.
//
// Weight rows take the 64-row side of a product, from registers, tokens the n side, from shared memory.
// W lies in tiles of 64 rows by 64 columns, tiles of the same rows behind each other: 16 bytes of each of
// a warpgroup's 128 threads, the four words of which are a thread's operands of the tile's four products
// (stream.cuh, FourBits). Row m of the product is row 2 (m % 8) + m / 8 % 2 of its 16, so that two rows of a
// thread are neighbours. Scales lie in the same tiles of rows: 64 for each run of columns.
//
// A block owns kDeep tiles of rows over kPieces runs; blocks of a cluster split K. Its two warpgroups take
// the steps of 64 columns in turn, all rows of them, each through a ring of tiles of its own that bulk
// copies fill: before pdl_wait() as many as it has places for, later one whenever one was used. So nobody
// waits for another warpgroup. The tiles that have no place yet are asked for in the second-level cache, so
// that a weight is on its way while the kernel in front runs. Scales come whole, and so does x behind
// pdl_wait(), in tiles that the products read.
//
// The sums of a tile start at zero, and are added to those of the row times the run's scale, in float32:
// W enters the tensor cores as whole numbers, and nothing is rounded on the way.
//
// With kNorm x is conditioned where it lies (few_rows.cuh), sums and squares of it are made on the way;
// shift and gain are the rows behind the tokens'.
//
// With kStraight no copy engine fetches x: threads load it as soon as they may, all at once and what
// conditions it before, and leave it, conditioned, where the products read it. So a block waits for memory
// once, and asks for no more of its weight than it has places for: a kernel of few microseconds has no time
// for it twice. For its neighbours it waits only when it pushes to them (few_rows.cuh, kBlockScope).
#pragma once

#include <cstdint>

#include "few_rows.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace flashrt {

template <class S, class Op>
class FourBitProduct;

// A thread's operands of four products.
struct FourBitTile {
  uint4 words;
};

// kDeep tiles of 64 rows of W and kPieces runs of 128 columns a block, kSplit blocks in a cluster, kStages
// tiles of each row in the ring of a warpgroup.
template <int kMaxTokens_, int kDeep_, int kPieces_, int kSplit_, int kStages_, bool kNorm_,
          bool kStraight_ = false, bool kByRows_ = false>
struct FourBitShape {
  template <class Op>
  using Product = FourBitProduct<FourBitShape, Op>;
  using Weight = FourBitTile;
  static constexpr bool kWhole = false, kNorm = kNorm_, kCentred = kNorm_, kSteady = true;
  static constexpr bool kStraight = kStraight_, kBlockScope = kStraight;
  static constexpr bool kOwnStays = false;
  static constexpr int kDeep = kDeep_, kPieces = kPieces_, kSplit = kSplit_, kStages = kStages_;
  static constexpr int kGroups = 2, kThreads = 128 * kGroups, kRows = 64 * kDeep;
  static constexpr int kMaxTokens = kMaxTokens_, kTokens = kMaxTokens + (kNorm ? 4 : 0);
  static constexpr int kWide = (kTokens + 7) / 8 * 8;  // n of the products
  // A warpgroup has some of the rows and all steps, or all rows and some steps; a turn is one of those.
  static constexpr bool kByRows = kByRows_;
  static constexpr int kGroupDeep = kByRows ? kDeep / kGroups : kDeep;
  static constexpr int kSteps = 2 * kPieces, kShare = kSteps / kGroups, kTurns = kByRows ? kSteps : kShare;
  // A warpgroup takes a run's steps behind each other, where there are registers for sums of a run.
  static constexpr bool kMerged = kStraight && (kByRows || kPieces % 2 == 0) && kGroupDeep < 4;
  static_assert(!kByRows || (kStraight && kDeep % kGroups == 0), "each has as many rows");
  static constexpr int kDepth = 64 * kSteps, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  static_assert(kStages <= kTurns, "each place is used");
  static_assert(kItems % kSplit == 0 && kMaxTokens % 8 == 0, "whole items a block");

  // Shared memory. Partial sums take the place of x and the ring; their pitch keeps the tokens of a warp
  // apart in the banks.
  static constexpr int kXBytes = kWide * 128, kTileBytes = 2048, kStageBytes = kGroupDeep * kTileBytes;
  static constexpr int kRing = kSteps * kXBytes;
  static constexpr int kRunScales = kRing + kGroups * kStages * kStageBytes;
  static constexpr int kFetched = kRunScales + kDeep * kPieces * 256;
  static constexpr int kPartRows = 64 * kGroupDeep, kParts = kByRows ? 1 : kGroups;
  static constexpr int kPitch = kPartRows + 4, kPartial = kTokens * kPitch * 4;
  static constexpr int kPartials = 0, kSquareParts = kGroups;
  static constexpr int kSummed = kGroups * kPartial;
  static constexpr int kScale = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kSquares = kScale + (kNorm ? kDepth * 2 : 0);
  static constexpr int kTotals = kSquares + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceived = kTotals + (kNorm ? kSquareParts * kTokens * 4 : 0);
  static constexpr int kReceivedSquares = kReceived + (kSplit > 1 ? kSplit * kTokens * kOwn * 16 : 0);
  static constexpr int kBarriers = kReceivedSquares + (kSplit > 1 && kNorm ? kSplit * kTokens * 8 : 0);
  static constexpr int kSharedBytes = (kBarriers + (2 + kSteps + kGroups * kStages) * 8 + 15) / 16 * 16;
  static_assert(kReceived % 16 == 0 && kBarriers % 8 == 0, "aligned");
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class FourBitProduct : FewRows<S, Op> {
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::floats, Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_;
  using Base::thread_, Base::tile_, Base::warp_;
  static constexpr int kScalesCame = 1, kTokensCame = 2, kTilesCame = 2 + S::kSteps;  // barriers

 public:
  __device__ __forceinline__ FourBitProduct(const FewRowsInput<FourBitTile>& input, Op& op)
      : Base(input, op) {
    group_ = __shfl_sync(0xffffffffu, warp_ / 4, 0);  // the same for a warp, and known to be
    slab_ = warp_ % 4;  // of 16 rows of a tile
    row_ = lane_ / 4;
    part_ = lane_ % 4;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    if (thread_ % 128 == 0) begin();
    __syncwarp();
    if constexpr (S::kSplit > 1) cluster_arrive_relaxed();
    if constexpr (S::kStraight) {
      this->prepare();
      take_tokens();
    } else {
      if constexpr (S::kNorm) fetch_condition();
      this->prepare();
      __syncthreads();  // the barriers and what conditions x
      if constexpr (S::kSplit > 1) cluster_wait();
      pdl_wait();
      if (thread_ % 128 == 0) fetch_tokens();
      this->fetch();
      if constexpr (S::kNorm) condition();
    }
    multiply();
    if constexpr (S::kSplit > 1 && S::kStraight) cluster_wait();
    this->collect();
  }

 private:
  __device__ __forceinline__ int step(int turn) const {
    return S::kByRows ? turn : S::kMerged ? group_ * S::kTurns + turn : turn * S::kGroups + group_;
  }
  // Of x, a step that the warpgroup leaves in shared memory.
  __device__ __forceinline__ int share_step(int turn) const {
    return S::kByRows ? turn * S::kGroups + group_ : step(turn);
  }
  __device__ __forceinline__ int first_deep() const { return S::kByRows ? group_ * S::kGroupDeep : 0; }
  __device__ __forceinline__ uint32_t tokens_came(int step) const {
    return shared_address(barrier(kTokensCame + step));
  }
  __device__ __forceinline__ uint32_t came(int stage) const {
    return shared_address(barrier(kTilesCame + group_ * S::kStages + stage));
  }
  __device__ __forceinline__ unsigned char* x_tile(int step) const { return shared_ + step * S::kXBytes; }
  __device__ __forceinline__ unsigned char* tiles(int stage) const {
    return shared_ + S::kRing + (group_ * S::kStages + stage) * S::kStageBytes;
  }

  // A warpgroup's barriers and first tiles, by one of its threads; the first one's does what is the block's.
  __device__ __forceinline__ void begin() const {
    if (thread_ == 0) {
      if constexpr (!S::kStraight) prefetch_map(*in_.rows);
      if constexpr (S::kSplit > 1) this->expect_pushes();
      barrier_init(shared_address(barrier(kScalesCame)), 1);
    }
    if constexpr (!S::kStraight) {
#pragma unroll 1
      for (int turn = 0; turn < S::kTurns; ++turn) barrier_init(tokens_came(step(turn)), 1);
    }
#pragma unroll
    for (int stage = 0; stage < S::kStages; ++stage) barrier_init(came(stage), 1);
    barrier_init_fence();
#pragma unroll 1
    for (int stage = 0; stage < S::kStages; ++stage) fetch_tiles(stage, stage);
    if (thread_ == 0) fetch_scales();
    if constexpr (!S::kStraight) {
#pragma unroll 1
      for (int turn = S::kStages; turn < S::kTurns; ++turn) ask_for_tiles(turn);
    }
  }

  // A tile of W of a warpgroup's turn.
  __device__ __forceinline__ const FourBitTile* tile_address(int turn, int deep) const {
    const size_t row = static_cast<size_t>(tile_) * S::kDeep + first_deep() + deep;
    return in_.weight + (row * (S::kInner / 64) + split_ * S::kSteps + step(turn)) * 128;
  }
  __device__ __forceinline__ void fetch_tiles(int turn, int stage) const {
    barrier_expect(came(stage), S::kStageBytes);
#pragma unroll
    for (int deep = 0; deep < S::kGroupDeep; ++deep) {
      copy_run(tiles(stage) + deep * S::kTileBytes, tile_address(turn, deep), S::kTileBytes,
               barrier(kTilesCame + group_ * S::kStages + stage));
    }
  }
  __device__ __forceinline__ void ask_for_tiles(int turn) const {
#pragma unroll
    for (int deep = 0; deep < S::kGroupDeep; ++deep) prefetch_run(tile_address(turn, deep), S::kTileBytes);
  }

  __device__ __forceinline__ void fetch_scales() const {
    constexpr int kBytes = S::kPieces * 256;
    barrier_expect(shared_address(barrier(kScalesCame)), S::kDeep * kBytes);
    const size_t first = static_cast<size_t>(tile_) * S::kDeep;
#pragma unroll
    for (int deep = 0; deep < S::kDeep; ++deep) {
      const float* from =
          in_.weight_scale + ((first + deep) * (S::kInner / 128) + split_ * S::kPieces) * 64;
      copy_run(shared_ + S::kRunScales + deep * kBytes, from, kBytes, barrier(kScalesCame));
    }
  }

  __device__ __forceinline__ void fetch_tokens() const {
#pragma unroll 1
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int step = this->step(turn);
      barrier_expect(tokens_came(step), S::kMaxTokens * 128);
      copy_tile(*in_.rows, shared_address(x_tile(step)), tokens_came(step),
                split_ * S::kDepth + step * 64, 0);
    }
  }

  // Gain - 1 as bf16, which x is grown by; shift, and the gain that this is, each as two rows behind the
  // tokens', the bf16 value and the rest; zeros behind.
  __device__ __forceinline__ void fetch_condition() const {
    for (int k = thread_ * 2; k < S::kDepth; k += S::kThreads * 2) {
      const int at = split_ * S::kDepth + k;
      float2 gain = {1.0f, 1.0f}, shift = {0.0f, 0.0f};
      if (in_.scale) gain = *reinterpret_cast<const float2*>(in_.scale + at);
      if (in_.shift) shift = *reinterpret_cast<const float2*>(in_.shift + at);
      leave_columns(k, gain, shift);
    }
    publish_shared();
  }
  __device__ __forceinline__ void leave_columns(int k, float2 gain, float2 shift) const {
    const uint32_t growth = pack2(gain.x - 1.0f, gain.y - 1.0f);
    const float2 grown = unpack2(growth);
    *reinterpret_cast<uint32_t*>(shared_ + S::kScale + k * 2) = growth;
    leave_vector(0, k, shift);
    leave_vector(2, k, {1.0f + grown.x, 1.0f + grown.y});
#pragma unroll
    for (int row = S::kTokens; row < S::kWide; ++row) *word(row, k) = 0u;
  }
  __device__ __forceinline__ void leave_vector(int row, int k, float2 v) const {
    const uint32_t upper = pack2(v.x, v.y);
    const float2 rounded = unpack2(upper);
    *word(S::kMaxTokens + row, k) = upper;
    *word(S::kMaxTokens + row + 1, k) = pack2(v.x - rounded.x, v.y - rounded.y);
  }
  // Columns k and k + 1 of a row of x, swizzled as the copy engine leaves them.
  __device__ __forceinline__ uint32_t* word(int row, int k) const {
    const int unit = k % 64 / 8 ^ (row & 7);
    return reinterpret_cast<uint32_t*>(x_tile(k / 64) + row * 128 + unit * 16 + k % 8 * 2);
  }

  // Conditions the warpgroup's share of x in place. A thread takes the same eight columns of a step in
  // some of its rows.
  __device__ __forceinline__ void condition() const {
    constexpr int kPieces = (S::kMaxTokens + 15) / 16;
    const int first = thread_ % 128 / 8, unit = thread_ % 8;
    float squares[kPieces] = {}, totals[kPieces] = {};
#pragma unroll 2
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int step = this->step(turn);
      barrier_wait(tokens_came(step), 0);
      const uint4 growth = *reinterpret_cast<const uint4*>(shared_ + S::kScale + step * 128 + unit * 16);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int token = first + 16 * i;
        if (16 * i + 16 > S::kMaxTokens && token >= S::kMaxTokens) break;
        uint4* p = reinterpret_cast<uint4*>(x_tile(step) + token * 128 + (unit ^ (token & 7)) * 16);
        const uint4 x = *p;
        add_moments(squares[i], totals[i], x);
        *p = this->grow(x, growth);
      }
    }
    leave_moments(squares, totals);
    publish_shared();
    wgmma_sync(1 + group_, 128);
  }
  template <int kPieces>
  __device__ __forceinline__ void leave_moments(const float (&squares)[kPieces],
                                                const float (&totals)[kPieces]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int token = thread_ % 128 / 8 + 16 * i;
      const float square = sum_of_eight(squares[i]), total = sum_of_eight(totals[i]);
      if (thread_ % 8 == 0 && token < S::kMaxTokens) {
        floats(S::kSquares)[group_ * S::kTokens + token] = square;
        floats(S::kTotals)[group_ * S::kTokens + token] = total;
      }
    }
  }

  // What conditions x, on its way while the kernel in front ends: four columns of a thread.
  struct Condition {
    float4 gain, shift;
  };
  __device__ __forceinline__ Condition load_condition() const {
    static_assert(!S::kNorm || S::kDepth <= 4 * S::kThreads, "columns of one turn");
    Condition c = {{1.0f, 1.0f, 1.0f, 1.0f}, {0.0f, 0.0f, 0.0f, 0.0f}};
    if (thread_ * 4 >= S::kDepth) return c;
    const int at = split_ * S::kDepth + thread_ * 4;
    if (in_.scale) c.gain = *reinterpret_cast<const float4*>(in_.scale + at);
    if (in_.shift) c.shift = *reinterpret_cast<const float4*>(in_.shift + at);
    return c;
  }
  __device__ __forceinline__ void leave_condition(const Condition& c) const {
    if (thread_ * 4 >= S::kDepth) return;
    leave_columns(thread_ * 4, {c.gain.x, c.gain.y}, {c.shift.x, c.shift.y});
    leave_columns(thread_ * 4 + 2, {c.gain.z, c.gain.w}, {c.shift.z, c.shift.w});
    publish_shared();
  }

  // Loads the warpgroup's share of x, and leaves it, conditioned, in tiles. A thread takes the same eight
  // columns of a step in some of its rows; rows that there are not are zeros.
  __device__ __forceinline__ void take_tokens() {
    constexpr int kPieces = (S::kMaxTokens + 15) / 16;
    const int first = thread_ % 128 / 8, unit = thread_ % 8;
    const bf16* from = in_.x + split_ * S::kDepth + unit * 8;
    uint4 x[S::kShare][kPieces] = {};
    const Condition condition = S::kNorm ? load_condition() : Condition{};
    pdl_wait();
#pragma unroll
    for (int turn = 0; turn < S::kShare; ++turn) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int token = first + 16 * i;
        load_fresh(x[turn][i], from + static_cast<size_t>(token) * in_.x_stride + share_step(turn) * 64,
                   token < in_.tokens);
      }
    }
    this->fetch();
    if constexpr (S::kNorm) leave_condition(condition);
    __syncthreads();  // the barriers and what conditions x
    uint4 growth[S::kNorm ? S::kShare : 1];
    if constexpr (S::kNorm) {
#pragma unroll
      for (int turn = 0; turn < S::kShare; ++turn) {
        const int at = share_step(turn) * 128 + unit * 16;
        growth[turn] = *reinterpret_cast<const uint4*>(shared_ + S::kScale + at);
      }
    }
    float squares[2][kPieces] = {}, totals[2][kPieces] = {};
#pragma unroll
    for (int turn = 0; turn < S::kShare; ++turn) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int token = first + 16 * i;
        if (16 * i + 16 > S::kMaxTokens && token >= S::kMaxTokens) break;
        if constexpr (S::kNorm) {
          add_moments(squares[turn % 2][i], totals[turn % 2][i], x[turn][i]);
          x[turn][i] = this->grow(x[turn][i], growth[turn]);
        }
        *reinterpret_cast<uint4*>(x_tile(share_step(turn)) + token * 128 + (unit ^ (token & 7)) * 16) =
            x[turn][i];
      }
    }
    if constexpr (S::kNorm) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        squares[0][i] += squares[1][i];
        totals[0][i] += totals[1][i];
      }
      leave_moments(squares[0], totals[0]);
    }
    publish_shared();
    if constexpr (S::kByRows) {
      __syncthreads();
    } else {
      wgmma_sync(1 + group_, 128);
    }
  }

  __device__ __forceinline__ static void add_moments(float& square, float& total, const uint4& x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 v = unpack2(words[i]);
      square = fmaf(v.x, v.x, square);
      square = fmaf(v.y, v.y, square);
      total += v.x + v.y;
    }
  }
  __device__ __forceinline__ static float sum_of_eight(float v) {
#pragma unroll
    for (int lanes = 1; lanes < 8; lanes *= 2) v += __shfl_xor_sync(0xffffffffu, v, lanes);
    return v;
  }

  __device__ __forceinline__ void multiply() {
    float sums[S::kGroupDeep][S::kWide / 2] = {};
    barrier_wait(shared_address(barrier(kScalesCame)), 0);
    if constexpr (S::kMerged) {
      multiply_runs(sums);
    } else {
      multiply_steps(sums);
    }
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
  }

  // The two steps of a run behind each other, whose sums are scaled once.
  __device__ __forceinline__ void multiply_runs(float (&sums)[S::kGroupDeep][S::kWide / 2]) const {
    int stage = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int turn = 0; turn < S::kTurns; turn += 2) {
      const int step = this->step(turn);
      const float* scales =
          floats(S::kRunScales) + (first_deep() * S::kPieces + step / 2) * 64 + slab_ * 16 + row_ * 2;
      float parts[S::kGroupDeep][S::kWide / 2];
      uint32_t w[2][2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        barrier_wait(came(stage), phase);
        const uint64_t x = wgmma_tile(shared_address(x_tile(step + half)));
        uint4 words = load_words(stage, 0);
        if (half > 0) wgmma_wait<1>();
        widen(words.x, words.y, w[0]);
#pragma unroll
        for (int deep = 0; deep < S::kGroupDeep; ++deep) {
          multiply_two(parts[deep], w[0], x, 0, half > 0);
          if (half + deep > 0) wgmma_wait<1>();
          if (half > 0 && deep > 0) {
            add_scaled(sums[deep - 1], parts[deep - 1], scales + (deep - 1) * S::kPieces * 64);
          }
          widen(words.z, words.w, w[1]);
          multiply_two(parts[deep], w[1], x, 2, true);
          if (deep + 1 < S::kGroupDeep) {
            words = load_words(stage, deep + 1);
            wgmma_wait<1>();
            widen(words.x, words.y, w[0]);
          }
        }
        free_stage(turn + half, stage);
        if (++stage == S::kStages) stage = 0, phase ^= 1;
      }
      wgmma_wait<0>();
      constexpr int kLast = S::kGroupDeep - 1;
      add_scaled(sums[kLast], parts[kLast], scales + kLast * S::kPieces * 64);
    }
  }
  // Once the warpgroup has read a stage's tiles: for those of a later turn.
  __device__ __forceinline__ void free_stage(int turn, int stage) const {
    if (turn + S::kStages >= S::kTurns) return;
    wgmma_sync(1 + group_, 128);
    if (thread_ % 128 == 0) fetch_tiles(turn + S::kStages, stage);
  }

  __device__ __forceinline__ void multiply_steps(float (&sums)[S::kGroupDeep][S::kWide / 2]) const {
    int stage = 0;
    uint32_t phase = 0;
#pragma unroll 1
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int step = this->step(turn);
      if constexpr (!S::kNorm && !S::kStraight) barrier_wait(tokens_came(step), 0);
      barrier_wait(came(stage), phase);
      const uint64_t x = wgmma_tile(shared_address(x_tile(step)));
      const float* scales = floats(S::kRunScales) + step / 2 * 64 + slab_ * 16 + row_ * 2;
      float parts[2][S::kWide / 2];  // sums of a tile and of the one before
      uint32_t w[2][2][4];           // operands of two products each
      uint4 words = load_words(stage, 0);
      widen(words.x, words.y, w[0]);
      // Operands are made, and sums scaled, while the products before or behind them run.
#pragma unroll
      for (int deep = 0; deep < S::kGroupDeep; ++deep) {
        multiply_two(parts[deep % 2], w[0], x, 0, false);
        if (deep > 0) {
          wgmma_wait<1>();
          add_scaled(sums[deep - 1], parts[(deep - 1) % 2], scales + (deep - 1) * S::kPieces * 64);
        }
        widen(words.z, words.w, w[1]);
        multiply_two(parts[deep % 2], w[1], x, 2, true);
        if (deep + 1 < S::kGroupDeep) {
          words = load_words(stage, deep + 1);
          wgmma_wait<1>();
          widen(words.x, words.y, w[0]);
        }
      }
      wgmma_wait<0>();
      constexpr int kLast = S::kGroupDeep - 1;
      add_scaled(sums[kLast], parts[kLast % 2], scales + kLast * S::kPieces * 64);
      free_stage(turn, stage);
      if (++stage == S::kStages) stage = 0, phase ^= 1;
    }
  }

  __device__ __forceinline__ uint4 load_words(int stage, int deep) const {
    const auto* tile = reinterpret_cast<const FourBitTile*>(tiles(stage) + deep * S::kTileBytes);
    return tile[thread_ % 128].words;
  }
  __device__ __forceinline__ static void widen(uint32_t first, uint32_t second, uint32_t (&w)[2][4]) {
    FourBits::widen(first, w[0]);
    FourBits::widen(second, w[1]);
  }
  // Products of 16 columns, onto sums of those before with `keep`.
  __device__ __forceinline__ static void multiply_two(float (&sums)[S::kWide / 2],
                                                      const uint32_t (&w)[2][4], uint64_t x, int first,
                                                      bool keep) {
    wgmma_begin();
    WgmmaRegisters<S::kWide>::run(sums, w[0], wgmma_step(x, first), keep);
    WgmmaRegisters<S::kWide>::run(sums, w[1], wgmma_step(x, first + 1), 1);
    wgmma_commit();
  }

  __device__ __forceinline__ static void add_scaled(float (&sums)[S::kWide / 2],
                                                    const float (&part)[S::kWide / 2],
                                                    const float* scales) {
    const float2 scale = *reinterpret_cast<const float2*>(scales);
#pragma unroll
    for (int i = 0; i < S::kWide / 2; i += 4) {
      sums[i] = fmaf(part[i], scale.x, sums[i]);
      sums[i + 1] = fmaf(part[i + 1], scale.x, sums[i + 1]);
      sums[i + 2] = fmaf(part[i + 2], scale.y, sums[i + 2]);
      sums[i + 3] = fmaf(part[i + 3], scale.y, sums[i + 3]);
    }
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kGroupDeep][S::kWide / 2]) const {
    constexpr float k = FourBits::kFactor;
    float* target = floats(S::kPartials + group_ * S::kPartial) + slab_ * 16 + row_ * 2;
#pragma unroll
    for (int deep = 0; deep < S::kGroupDeep; ++deep) {
#pragma unroll
      for (int i = 0; i < S::kWide / 4; ++i) {
        const int octet = i / 2, odd = i % 2, token = octet * 8 + part_ * 2 + odd;
        const bool keep = token < S::kMaxTokens ? token < in_.tokens : token < S::kTokens;
        const float2 v = {sums[deep][octet * 4 + odd] * k, sums[deep][octet * 4 + 2 + odd] * k};
        store_shared_if(keep, target + token * S::kPitch + deep * 64, v);
      }
    }
  }

  int group_, slab_, row_, part_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
