// pushed_rows: where what comes behind a product of few rows wants whole rows of it, the blocks of a cluster,
// which split K, push sums from registers to the block that finishes their row.
//
// Each finishes as many of the rows of x as the others. Rows of W come in sets of kSet, and what is pushed of
// a set lies together: of every block a run of kSlots, the rows that this block finishes and behind them
// whatever else it wants to have of all. A set has a barrier of its own, the first of the block's.
#pragma once

#include <cstdint>

#include "pushed_sums.cuh"

namespace flashrt {

// Where sums lie, of kSets sets by kSplit blocks, with kFurther slots behind the rows.
template <class Weight_, int kSets_, int kSet_, int kSplit_, int kFurther_>
struct PushedRowsShape {
  using Weight = Weight_;
  static constexpr int kSets = kSets_, kSet = kSet_, kRows = kSets * kSet, kSplit = kSplit_;
  static constexpr int kGroups = 2, kThreads = 128 * kGroups, kMaxTokens = 48;
  static constexpr int kOwnTokens = kMaxTokens / kSplit, kSlots = kOwnTokens + kFurther_;
  static constexpr int kNumber = PushedSums<Weight>::kBytes / 4;
  static constexpr int kPitch = kSet + 4;  // numbers; rows of a warp lie in different banks
  static constexpr int kSumBytes = kSplit * kSlots * kPitch * kNumber;
  static_assert(kMaxTokens % kSplit == 0, "as many rows a block");
};

// Of a product that is finished by its kernel and not by an op.
struct NoFinish {};

#ifdef FLASHRT_SM90A

// Product: what the block multiplies with.
template <class S, class Product>
class PushedRows : protected Product {
 protected:
  using Product::barrier, Product::in_, Product::lane_, Product::shared_, Product::slab_, Product::split_;
  using Pushed = PushedSums<typename S::Weight>;
  // Where a lane's sums go: a slot of a block, and whether there are any.
  struct Target {
    int rank, slot;
    bool keep;
  };

  __device__ __forceinline__ PushedRows(const FewRowsInput<typename S::Weight>& input, NoFinish& op)
      : Product(input, op) {
    own_ = (in_.tokens + S::kSplit - 1) / S::kSplit;
  }

  // The rows of x that a block finishes.
  __device__ __forceinline__ int first(int rank) const { return min(rank * own_, in_.tokens); }
  __device__ __forceinline__ int count(int rank) const { return first(rank + 1) - first(rank); }

  // By one thread, before it arrives at the cluster; with `more` bytes on the first set's barrier.
  __device__ __forceinline__ void expect_sums(uint32_t more) const {
    const uint32_t slots = count(split_) + S::kSlots - S::kOwnTokens;
#pragma unroll
    for (int set = 0; set < S::kSets; ++set) {
      const uint32_t sums = (S::kSplit - 1) * slots * S::kSet * S::kNumber;
      expect_bytes(barrier(set), sums + (set == 0 ? more : 0));
    }
  }

  // Which row and which four columns of eight a lane has sums of, as Pushed::row() gives them.
  __device__ __forceinline__ int row() const { return slab_ * 16 + lane_ / 4 + lane_ % 2 * 8; }
  __device__ __forceinline__ int column() const { return lane_ % 4 / 2 * 4; }
  __device__ __forceinline__ Target target() const {
    const bool keep = row() < in_.tokens;
    int rank = 0;
#pragma unroll
    for (int i = 1; i < S::kSplit; ++i) rank += row() >= i * own_;
    if (!keep) rank = split_;
    return {rank, row() - rank * own_, keep};
  }

  // Four sums of each of kEights eight columns that follow each other, from `first` on; where a block
  // finishes itself they only lie down.
  template <int kEights>
  __device__ __forceinline__ void push_sums(const Target& to, int set, int first,
                                            const typename Pushed::Packed (&v)[kEights]) const {
    const int place = S::received(set) + ((split_ * S::kSlots + to.slot) * S::kPitch + first) * S::kNumber;
    if (to.rank != split_) {
      const uint32_t base = remote_address(shared_, to.rank), came = base + S::kBarriers + set * 8;
#pragma unroll
      for (int i = 0; i < kEights; ++i) push(base + place + i * 8 * S::kNumber, came, v[i]);
    } else if (to.keep) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        *reinterpret_cast<typename Pushed::Packed*>(shared_ + place + i * 8 * S::kNumber) = v[i];
      }
    }
  }

  // Sums over the blocks, in their order.
  __device__ __forceinline__ float4 received(int set, int slot, int column) const {
    const unsigned char* p = shared_ + S::received(set) + (slot * S::kPitch + column) * S::kNumber;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int source = 0; source < S::kSplit; ++source) {
      const float4 v = Pushed::read(p + source * S::kSlots * S::kPitch * S::kNumber);
      sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
    }
    return sum;
  }

  int own_;  // rows of x a block, but for the last
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
