// few_rows_by_tokens: as few_rows.cuh, but a block of a cluster finishes all items of some of the tokens and
// not some items of all. A token's items lie in neighbouring lanes of a warp, which write whole runs of a row
// of y and can say what is true of all of a run.
#pragma once

#include <cstdint>

#include "few_rows.cuh"

namespace flashrt {

// Of S: kByTokens, kLanes of a token, a power of two, and kOwnTokens, the most tokens that a block finishes.
// What an op finishes with a row is told by finish_row, which all lanes of a warp call: whether it is there.
template <class S, class Op>
class FewRowsByTokens : protected FewRows<S, Op> {
 protected:
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_, Base::thread_;
  using Base::tile_, Base::warp_, Base::kFrom, Base::kPushed;
  using typename Base::Pushed;
  static constexpr int kPlace = S::kOwnTokens * S::kItems * Pushed::kBytes;  // of what a block pushes

  __device__ __forceinline__ FewRowsByTokens(const FewRowsInput<typename S::Weight>& input, Op& op)
      : Base(input, op) {
    first_ = first(split_);
    count_ = first(split_ + 1) - first_;
    item_ = min(thread_ % S::kLanes, S::kItems - 1);
  }

  __device__ __forceinline__ void expect_pushes() const {
    expect_bytes(barrier(kPushed), kFrom * count_ * S::kItems * Pushed::kBytes);
  }
  __device__ __forceinline__ void prepare() {
    op_.prepare(tile_, item_);
    this->fetch_row_scales(item_);
  }
  __device__ __forceinline__ void fetch() { fetch(thread_ / S::kLanes); }

  // Once all partial sums of the block lie in shared memory.
  __device__ __forceinline__ void collect() {
    __syncthreads();
    scatter();
    this->wait(kPushed);
    finish();
  }

 private:
  // The first token that a block finishes.
  __device__ __forceinline__ int first(int rank) const { return in_.tokens * rank / S::kSplit; }

  __device__ __forceinline__ void fetch(int own) {
    op_.fetch(tile_, own < count_ ? first_ + own : in_.tokens, item_, in_.tokens);
  }

  // As that of few_rows.cuh.
  __device__ __forceinline__ void scatter() const {
    constexpr int kWarps = S::kThreads / 32, kStride = kWarps / kFrom * 32;
    static_assert(kWarps >= kFrom, "a warp has one neighbour to push to");
    if (kWarps % kFrom != 0 && warp_ >= kWarps / kFrom * kFrom) return;
    const int next = S::kOwnStays ? split_ + 1 + warp_ % kFrom : warp_ + split_;
    const int rank = next % S::kSplit, start = first(rank), items = (first(rank + 1) - start) * S::kItems;
    const int place = S::kOwnStays && split_ > rank ? split_ - 1 : split_;  // among those whose pushes come
    const uint32_t base = remote_address(shared_, rank);
    const uint32_t to = base + S::kReceived + place * kPlace;
    for (int i = warp_ / kFrom * 32 + lane_; i < items; i += kStride) {
      const float4 v = this->sum_item(start + i / S::kItems, i % S::kItems);
      Pushed::send(to + i * Pushed::kBytes, base + S::kBarriers + kPushed * 8, v);
    }
  }

  // The sum over the blocks, of a token that is the block's `own`.
  __device__ __forceinline__ float4 received(int own) const {
    const unsigned char* pushed = shared_ + S::kReceived + (own * S::kItems + item_) * Pushed::kBytes;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < S::kSplit; ++from) {
      const int place = S::kOwnStays && from > split_ ? from - 1 : from;
      const bool stays = S::kOwnStays && from == split_;
      const float4 v = stays ? this->sum_item(first_ + own, item_)
                             : Pushed::read(pushed + place * kPlace);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return sum;
  }

  __device__ __forceinline__ void finish() {
    constexpr int kTurn = S::kThreads / S::kLanes;  // tokens
#pragma unroll 1
    for (int start = 0; start < count_; start += kTurn) {
      const int own = start + thread_ / S::kLanes;
      const bool there = own < count_ && thread_ % S::kLanes < S::kItems;
      float4 y = {0.0f, 0.0f, 0.0f, 0.0f};
      if (start > 0) fetch(own);
      if (there) {
        y = received(own);
        if constexpr (Base::kNarrow) {
          const float4& s = this->row_scales_;
          y = {y.x * s.x, y.y * s.y, y.z * s.z, y.w * s.w};
        }
      }
      op_.finish_row(tile_, first_ + own, item_, y, there);
    }
  }

  int first_, count_, item_;
};

}  // namespace flashrt
