// normed_pushed_product_sm90: y = n W^T of E4M3 for up to 48 rows x [A, K] bf16 behind the norm of a layer,
// n = (x - mean) / sqrt(var + eps) * gain + shift, by clusters that split K (sm_90a), where what comes behind
// wants whole rows of y: rows are made normal as in normed_product_sm90.cuh, and sums travel as in
// pushed_rows.cuh.
//
// Either warpgroup has half of the rows of W, for all of the block's columns: what it has in registers in the
// end it pushes, and nothing is handed over.
#pragma once

#include <cstdint>

#include "normed_product_sm90.cuh"
#include "pushed_rows.cuh"

namespace flashrt {

// kBoxes of kBox rows of W, which are one set, and kSteps of 128 columns a block, kSplit blocks in a cluster.
template <int kBoxes_, int kBox_, int kSteps_, int kSplit_>
struct NormedPushedShape : PushedRowsShape<e4m3, 1, kBoxes_ * kBox_, kSplit_, 0>,
                           NormedRows<256, 48, 128 * kSteps_, true, true> {
  using Rows = PushedRowsShape<e4m3, 1, kBoxes_ * kBox_, kSplit_, 0>;
  using Rows::kGroups, Rows::kMaxTokens, Rows::kRows, Rows::kSplit;
  static constexpr bool kNorm = false, kCentred = false, kBlockScope = false, kOwnStays = true, kLate = false;
  static constexpr bool kWhole = false, kByTokens = false;
  static constexpr int kSteps = kSteps_, kColumns = 128, kDepth = kColumns * kSteps, kInner = kDepth * kSplit;
  static constexpr int kGroupRows = kRows / kGroups, kTokens = kMaxTokens;
  static_assert(kGroupRows % 8 == 0, "whole tiles a warpgroup");

  // Shared memory: tiles of all steps, behind which products read for rows that there are not; then what
  // conditions x, moments, and what is pushed.
  static constexpr bool kApart = true;
  static constexpr int kStages = kSteps, kTokenStages = kSteps, kBoxes = kBoxes_, kBox = kBox_;
  static constexpr int kWeightBytes = kRows * 128, kTokenBytes = kMaxTokens * 128;
  static constexpr int kStageBytes = kWeightBytes, kStageStart = 0;
  static constexpr int kTilesEnd = kSteps * (kWeightBytes + kTokenBytes);
  static constexpr int kCondition = kTilesEnd, kMoments = kCondition + NormedPushedShape::kConditionBytes;
  static constexpr int kSums = kMoments + kSplit * kMaxTokens * 8;
  static constexpr int kPushedEnd = kSums + Rows::kSumBytes;
  __device__ __forceinline__ static int received(int) { return kSums; }
  // What comes behind may have the place of W: other blocks write there when they have all sums.
  static constexpr int kRoom = 0, kRoomEnd = kSteps * kWeightBytes;
  // Barriers: of what is pushed, of each step's W, of moments.
  static constexpr int kMomentsCame = 1 + kSteps, kCounted = kMomentsCame + 1;
  static_assert(kWeightBytes % 1024 == 0 && kTokenBytes % 1024 == 0, "aligned");
  static_assert(kSums - kTilesEnd >= (64 - kMaxTokens) * 128, "products read no further");
};

#ifdef FLASHRT_SM90A

template <class S>
class NormedPushedProduct : protected PushedRows<S, NormedProduct<S, NoFinish>> {
 protected:
  using Base = PushedRows<S, NormedProduct<S, NoFinish>>;
  using Base::group_, Base::in_, Base::lane_, Base::slab_, Base::thread_;
  using typename Base::Centred;

  __device__ __forceinline__ NormedPushedProduct(const FewRowsInput<e4m3>& input, NoFinish& op)
      : Base(input, op), x_scale_(*input.x_scale), scale_(x_scale_ * *input.weight_scale) {}

  // All of W, and the barriers, by one thread before it arrives at the cluster.
  __device__ __forceinline__ void begin() const {
    this->expect_sums(0);
    Base::begin();
  }

  // Gain and shift, divided by what n is divided by to become E4M3.
  __device__ __forceinline__ void leave_centred(const Centred& v) const {
    const float factor = 1.0f / x_scale_;
#pragma unroll
    for (int turn = 0; turn < Centred::kTurns; ++turn) {
      const int k = (turn * S::kThreads + thread_) * 2;
      if (k >= S::kDepth) break;
      const float2 gain = v.gains[turn], shift = v.shifts[turn];
      this->leave_condition(k, {gain.x * factor, gain.y * factor}, {shift.x * factor, shift.y * factor});
    }
  }

  __device__ __forceinline__ void fetch_rows() const {}  // with their products

  // All sums, to where they are finished: behind it only their barrier says what has come.
  __device__ __forceinline__ void multiply() const {
    float sums[S::kGroupRows / 2];
    Base::multiply(1.0f / x_scale_, sums);
    if (slab_ == S::kMaxTokens / 16) return;  // no rows
    typename Base::Pushed::Packed v[S::kGroupRows / 8];
#pragma unroll
    for (int i = 0; i < S::kGroupRows / 8; ++i) v[i] = Base::Pushed::row(sums + 4 * i, lane_ % 2 != 0);
    this->push_sums(this->target(), 0, group_ * S::kGroupRows + this->column(), v);
  }

  __device__ __forceinline__ void await_sums(int) const { wait_bytes(this->barrier(0)); }
  // Four numbers of a row that this block finishes, of the rows of W of a box.
  __device__ __forceinline__ float4 finished(int box, int row, int column, const float4& bias) const {
    const float4 y = this->received(0, row, box * S::kBox + column);
    return {fmaf(y.x, scale_, bias.x), fmaf(y.y, scale_, bias.y), fmaf(y.z, scale_, bias.z),
            fmaf(y.w, scale_, bias.w)};
  }

 private:
  float x_scale_, scale_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
