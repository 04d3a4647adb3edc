// pushed_product_sm90: y = x W^T for up to 48 rows x [A, K] by clusters that split K (sm_90a), where what
// comes behind wants whole rows of y: a block's tiles are under way from the start, its sums go from
// registers to the block that finishes their row.
//
// As in streamed_product_sm90.cuh tokens take the 64-row side of a product and rows of W the n side, and the
// fourth warp of a warpgroup has shift and gain of the norm. Here a warpgroup's ring holds all its tiles of W
// or all but two, and those of x all lie side by side: nothing that is known before pdl_wait() is waited for
// behind it, and products follow each other without a wait in between.
//
// The two warpgroups take steps of K in turn or, with kApart, halves of the rows of W, each with tiles of its
// own. Sums of a row come to the block that finishes it from every source: a block or, where warpgroups have
// other steps, a warpgroup of it. The two vectors of the norm come to all.
//
// With kOver what is pushed lies over tiles that were not fetched a second time: the blocks of the cluster tell
// each other when those are used, long before they push.
#pragma once

#include <cstdint>

#include "streamed_product_sm90.cuh"

namespace flashrt {

// kRows of W and kSteps of 64 columns a block, kSplit blocks in a cluster, kRing tiles of W a warpgroup.
template <int kRows_, int kSteps_, int kSplit_, int kRing_, bool kApart_>
struct PushedShape {
  using Weight = bf16;
  static constexpr bool kNorm = true, kCentred = true, kBlockScope = false, kOwnStays = false, kLate = false;
  static constexpr bool kRowsApart = kApart_;
  static constexpr int kVectors = 2;  // of shift
  static constexpr int kRows = kRows_, kSteps = kSteps_, kSplit = kSplit_, kRing = kRing_;
  static constexpr int kGroups = 2, kThreads = 128 * kGroups;
  static constexpr int kGroupRows = kRowsApart ? kRows / kGroups : kRows;
  static constexpr int kTurns = kRowsApart ? kSteps : kSteps / kGroups;  // of a warpgroup
  static constexpr int kMaxTokens = 48, kTokens = kMaxTokens + 4;
  static constexpr int kDepth = 64 * kSteps, kInner = kDepth * kSplit;
  static_assert(kGroupRows % 8 == 0 && kSteps % kGroups == 0 && kRing <= kTurns, "whole turns");

  // Steps whose operands are in registers: all, or one beside that whose product is under way.
  static constexpr bool kWhole = false, kStraight = !kRowsApart && kTurns <= 3;
  static constexpr int kAhead = kStraight ? kTurns : 2;

  // Shared memory: tiles of W, those of both warpgroups for a turn side by side, then those of x.
  static constexpr bool kApart = true;
  static constexpr int kStages = kGroups * kRing, kTokenStages = kSteps;
  static constexpr int kWeightBytes = kGroupRows * 128, kTokenBytes = kMaxTokens * 128;
  static constexpr int kStageBytes = kWeightBytes, kStageStart = 0;
  static constexpr int kScale = kStages * kWeightBytes + kTokenStages * kTokenBytes;
  static constexpr int kVector = kDepth * 2 + 16;  // of rows that a warp reads at a time
  static constexpr int kShift = kScale + kDepth * 2;
  static constexpr int kTilesEnd = kShift + kVectors * kVector;
  static constexpr int kCounted = 1 + kStages + kTokenStages;  // barriers

  // What is pushed to a block: of every source a run of slots, rows of x that the block finishes and behind
  // them the two vectors; and of every warpgroup the squares and totals of those rows.
  static constexpr int kSources = kSplit * (kRowsApart ? 1 : kGroups);
  static constexpr int kOwnTokens = kMaxTokens / kSplit, kSlots = kOwnTokens + 2;
  static constexpr int kPitch = kRows + 4;  // rows of a warp lie in different banks
  static constexpr int kSumBytes = kSources * kSlots * kPitch * 4;
  static constexpr int kReceivedBytes = kSumBytes + kSplit * kGroups * kOwnTokens * 8;
  static constexpr bool kOver = kRing < kTurns;
  static constexpr int kOverStart = (kTurns - kRing) * kGroups * kWeightBytes;  // behind tiles that go twice
  static_assert(!kOver || kOverStart + kReceivedBytes <= kStages * kWeightBytes, "room in used tiles");
  static_assert(kStageBytes % 1024 == 0 && kMaxTokens % kSplit == 0, "aligned");
};

#ifdef FLASHRT_SM90A

// Of a product that is finished by its kernel and not by an op.
struct NoFinish {};

template <class S>
class PushedProduct : protected StreamedProduct<S, NoFinish> {
 protected:
  using Base = StreamedProduct<S, NoFinish>;
  using Base::barrier, Base::group_, Base::in_, Base::lane_, Base::shared_, Base::slab_, Base::split_;
  using Base::thread_, Base::tile_, Base::kPushed, Base::kWeightsCame;

  // A warpgroup's sums, and of two tokens a lane's share of squares and totals.
  struct Sums {
    float y[S::kGroupRows / 2], squares[2] = {}, totals[2] = {};
  };

  __device__ __forceinline__ PushedProduct(const FewRowsInput<bf16>& input, NoFinish& op)
      : Base(input, op) {
    own_ = (in_.tokens + S::kSplit - 1) / S::kSplit;
  }

  // The rows of x that a block finishes.
  __device__ __forceinline__ int first(int rank) const { return min(rank * own_, in_.tokens); }
  __device__ __forceinline__ int count(int rank) const { return first(rank + 1) - first(rank); }

  // The barriers, and the first tiles of W, by one thread before it arrives at the cluster.
  __device__ __forceinline__ void begin() const {
    prefetch_map(*in_.tiles);
    prefetch_map(*in_.rows);
    const uint32_t rows = count(split_);
    expect_bytes(barrier(kPushed),
                 S::kSources * (rows + 2) * S::kRows * 4 + S::kSplit * S::kGroups * rows * 8);
#pragma unroll
    for (int stage = 0; stage < S::kStages; ++stage) barrier_init(this->full(stage), 1);
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) barrier_init(this->tokens_full(step), 1);
    barrier_init_fence();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) barrier_expect(this->tokens_full(step), S::kTokenBytes);
#pragma unroll
    for (int turn = 0; turn < S::kRing; ++turn) {
#pragma unroll
      for (int group = 0; group < S::kGroups; ++group) fetch_weights(turn, group);
    }
  }
  __device__ __forceinline__ void fetch_tokens() const {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) this->Base::fetch_tokens(step);
  }

  // This warpgroup's share of the product.
  __device__ __forceinline__ void multiply(Sums& sums) {
    uint32_t x[S::kAhead][4][4];
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int step = step_of(turn, group_), stage = stage_of(turn, group_);
      barrier_wait(this->tokens_full(step), 0);
      barrier_wait(this->full(stage), turn / S::kRing);
      this->load_operands(step, x[turn % S::kAhead]);
      const uint64_t w = wgmma_tile(shared_address(this->stage(stage)));
      wgmma_begin();
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaRegisters<S::kGroupRows>::run(sums.y, x[turn % S::kAhead][part], wgmma_step(w, part),
                                           turn > 0 || part > 0);
      }
      wgmma_commit();
      if (S::kStraight) continue;
      if (step % S::kGroups == group_) add_moments(step, sums);
      if (turn > 0) {
        wgmma_wait<1>();
        used(turn - 1);
      }
    }
    if (S::kStraight) {
#pragma unroll
      for (int turn = 0; turn < S::kTurns; ++turn) add_moments(step_of(turn, group_), sums);
    }
    wgmma_wait<0>();
  }

  // Every row's sums to the block that finishes it, and those of shift and gain to all.
  __device__ __forceinline__ void push_sums(Sums& sums) const {
    const int source = S::kRowsApart ? split_ : split_ * S::kGroups + group_;
    const bool odd = lane_ % 2 != 0;
    const int column = (S::kRowsApart ? group_ * S::kGroupRows : 0) + lane_ % 4 / 2 * 4;
    const bool vectors = slab_ == S::kMaxTokens / 16;
    // Of two lanes side by side one takes four columns of the upper row, the other of the lower one. Shift
    // and gain are two rows each; four pairs of lanes have either, one for each block.
    const int token = slab_ * 16 + lane_ / 4 + odd * 8;
    const int rank = vectors ? lane_ / 4 % 2 * 2 + odd : token / own_;
    const int slot = vectors ? S::kOwnTokens + lane_ / 8 : token - rank * own_;
    const bool keep = vectors ? lane_ < 16 : token < in_.tokens;
    static_assert(S::kSplit == 4, "as many as pairs of lanes");
    const uint32_t base = remote_address(shared_, keep ? rank : 0);
    const uint32_t pushed = base + S::kBarriers + kPushed * 8;
    const uint32_t target =
        base + S::kReceived + ((source * S::kSlots + slot) * S::kPitch + column) * 4;
#pragma unroll
    for (int j = 0; j < S::kGroupRows / 8; ++j) {
      float* y = sums.y + 4 * j;
      if (vectors) {
        y[0] += __shfl_xor_sync(0xffffffffu, y[0], 4);
        y[1] += __shfl_xor_sync(0xffffffffu, y[1], 4);
        y[2] = y[0], y[3] = y[1];
      }
      const float a = __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[2], 1);
      const float b = __shfl_xor_sync(0xffffffffu, odd ? y[1] : y[3], 1);
      push(target + j * 32, pushed, odd ? float4{a, b, y[2], y[3]} : float4{y[0], y[1], a, b}, keep);
    }
  }

  __device__ __forceinline__ void push_moments(const Sums& sums) const {
    if (slab_ >= S::kMaxTokens / 16) return;  // no rows of x
    const int half = lane_ % 4, token = slab_ * 16 + half * 8 + lane_ / 4, rank = token / own_;
    const float squares[2] = {this->sum_of_four(sums.squares[0]), this->sum_of_four(sums.squares[1])};
    const float totals[2] = {this->sum_of_four(sums.totals[0]), this->sum_of_four(sums.totals[1])};
    const bool keep = half < 2 && token < in_.tokens;
    const uint32_t base = remote_address(shared_, keep ? rank : 0);
    const int at = (split_ * S::kGroups + group_) * S::kOwnTokens + token - rank * own_;
    push(base + S::kReceived + S::kSumBytes + at * 8, base + S::kBarriers + kPushed * 8,
         half == 0 ? float2{squares[0], totals[0]} : float2{squares[1], totals[1]}, keep);
  }

  // Sums over the sources, in their order: of a row that this block finishes, or of shift W^T or gain W^T.
  __device__ __forceinline__ float4 received(int slot, int column) const {
    const float* p = reinterpret_cast<const float*>(shared_ + S::kReceived) + slot * S::kPitch + column;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int source = 0; source < S::kSources; ++source) {
      const float4 v = *reinterpret_cast<const float4*>(p + source * S::kSlots * S::kPitch);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return sum;
  }
  __device__ __forceinline__ float4 received_shift(int column) const {
    return received(S::kOwnTokens, column);
  }
  __device__ __forceinline__ float4 received_gain(int column) const {
    return received(S::kOwnTokens + 1, column);
  }
  // A row's mean, and what differences from it are multiplied by.
  __device__ __forceinline__ float2 received_moments(int row) const {
    const float2* p = reinterpret_cast<const float2*>(shared_ + S::kReceived + S::kSumBytes) + row;
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int source = 0; source < S::kSplit * S::kGroups; ++source) {
      const float2 v = p[source * S::kOwnTokens];
      sum = {sum.x + v.x, sum.y + v.y};
    }
    const float mean = sum.y * (1.0f / S::kInner);
    const float variance = fmaxf(sum.x * (1.0f / S::kInner) - mean * mean, 0.0f);
    return {mean, rsqrtf(variance + in_.eps)};
  }

 private:
  __device__ __forceinline__ static int step_of(int turn, int group) {
    return S::kRowsApart ? turn : turn * S::kGroups + group;
  }
  __device__ __forceinline__ static int stage_of(int turn, int group) {
    return turn % S::kRing * S::kGroups + group;
  }
  __device__ __forceinline__ void fetch_weights(int turn, int group) const {
    const int stage = stage_of(turn, group);
    barrier_expect(this->full(stage), S::kWeightBytes);
#pragma unroll
    for (int box = 0; box < S::kBoxes; ++box) {
      copy_tile(*in_.tiles, shared_address(this->stage(stage) + box * (S::kWeightBytes / S::kBoxes)),
                this->full(stage), split_ * S::kDepth + step_of(turn, group) * 64,
                S::box_row(tile_, group, box));
    }
  }
  __device__ __forceinline__ void add_moments(int step, Sums& sums) const {
    if (slab_ < S::kMaxTokens / 16) this->Base::add_moments(step, sums.squares, sums.totals);
  }

  // The product of a turn is there: its tile of W may go, for another one or for what is pushed.
  __device__ __forceinline__ void used(int turn) const {
    if (turn + S::kRing < S::kTurns) {
      wgmma_sync(1 + group_, 128);  // the warpgroup has read it
      if (thread_ % 128 == 0) fetch_weights(turn + S::kRing, group_);
    }
    if (S::kOver && turn == S::kRing - 1) cluster_arrive_relaxed();
  }

  int own_;  // rows of x a block, but for the last
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
