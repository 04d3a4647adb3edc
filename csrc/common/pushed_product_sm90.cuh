// pushed_product_sm90: y = x W^T for up to 48 rows x [A, K], with the norm of a layer in front, by clusters
// that split K (sm_90a), where what comes behind wants whole rows of y (pushed_rows.cuh).
//
// Tokens take the 64-row side of a product, from registers, as in streamed_product_sm90.cuh, where the fourth
// warp of a warpgroup has shift and gain of the norm. Here x is conditioned once and stays in registers, and
// the rows of W come in sets of kSet, each multiplied as a whole: while a set's sums travel, the tensor cores
// have the next one. Two sets are under way before pdl_wait(), a third takes the place of the first.
//
// The two warpgroups take steps of K in turn. Each hands half of a set's columns to the other and pushes the
// other half: between blocks bytes count, a push of 16 takes as long as two cycles.
#pragma once

#include <cstdint>

#include "pushed_rows.cuh"
#include "streamed_product_sm90.cuh"

namespace flashrt {

// kSets of kSet rows of W and kSteps of 64 columns a block, kSplit blocks in a cluster. What is pushed
// besides rows are shift W^T and gain W^T.
template <int kSets_, int kSet_, int kSteps_, int kSplit_>
struct PushedShape : PushedRowsShape<bf16, kSets_, kSet_, kSplit_, 2> {
  using Rows = PushedRowsShape<bf16, kSets_, kSet_, kSplit_, 2>;
  using Rows::kGroups, Rows::kMaxTokens, Rows::kOwnTokens, Rows::kRows, Rows::kSet, Rows::kSets;
  using Rows::kSplit, Rows::kSumBytes;
  static constexpr bool kNorm = true, kCentred = true, kBlockScope = false, kOwnStays = true, kLate = false;
  static constexpr bool kWhole = false, kByTokens = false;
  static constexpr int kVectors = 2;  // of shift
  static constexpr int kSteps = kSteps_, kTurns = kSteps / kGroups;
  static constexpr int kTokens = kMaxTokens + 4, kGroupRows = kRows;
  static constexpr int kDepth = 64 * kSteps, kInner = kDepth * kSplit;
  static_assert(kSet % 16 == 0 && kSteps % kGroups == 0, "halves of columns, whole turns");

  // Shared memory: the tiles of up to two sets of W, then those of x, with barriers of their own.
  static constexpr bool kApart = true;
  static constexpr int kRing = kSets < 2 ? kSets : 2;
  static constexpr int kStages = kRing * kSteps, kTokenStages = kSteps;
  static constexpr int kWeightBytes = kSet * 128, kTokenBytes = kMaxTokens * 128;
  static constexpr int kSetBytes = kSteps * kWeightBytes;
  static constexpr int kStageBytes = kWeightBytes, kStageStart = 0;
  static constexpr int kTokensAt = kStages * kWeightBytes;
  static constexpr int kScale = kTokensAt + kTokenStages * kTokenBytes;
  static constexpr int kVector = kDepth * 2 + 16;  // of rows that a warp reads at a time
  static constexpr int kShift = kScale + kDepth * 2;
  static constexpr int kTilesEnd = kShift + kVectors * kVector;
  // Barriers: of what is pushed of each set, of each set of W, of each tile of x.
  static constexpr int kSetsCame = kSets, kTokensCame = kSetsCame + kRing;
  static constexpr int kCounted = kTokensCame + kSteps;

  // What one warpgroup hands the other lies in the last two tiles of x, which are used by then.
  static constexpr int kHanded = kTokensAt + (kSteps - kGroups) * kTokenBytes;
  static_assert(kSet / 4 * 128 * 4 <= kTokenBytes, "half of the columns of 64 tokens");

  // Pushed are also, of every warpgroup, the squares and totals of the rows that a block finishes.
  static constexpr int kMomentBytes = kSplit * kGroups * kOwnTokens * 8;
  static_assert(kStageBytes % 1024 == 0, "aligned");

  // With a third set sums lie over what is used: two sets over x, the third over the second's rows of W,
  // where there is more room. Blocks tell each other when they have used it.
  static constexpr bool kOver = kSets > kRing;
  static_assert(kSets <= 3, "one set that is fetched later");
  __device__ __forceinline__ static int received(int set) {
    if (!kOver) return kTilesEnd + set * kSumBytes;
    return set < kRing ? kTokensAt + set * kSumBytes : kSetBytes;
  }
  static constexpr int kMoments = kOver ? kTokensAt + kRing * kSumBytes : kTilesEnd + kSets * kSumBytes;
  static constexpr int kMerged = kOver ? kTilesEnd : kMoments + kMomentBytes;
  static constexpr int kPushedEnd = kMerged + kOwnTokens * 8;
  static constexpr int kRoom = kSetBytes + kSumBytes, kRoomEnd = kRing * kSetBytes;
  static_assert(!kOver || kMoments + kMomentBytes <= kHanded, "room over tiles of x");
};

#ifdef FLASHRT_SM90A

template <class S>
class PushedProduct : protected PushedRows<S, StreamedProduct<S, NoFinish>> {
 protected:
  using Base = PushedRows<S, StreamedProduct<S, NoFinish>>;
  using Base::barrier, Base::count, Base::first, Base::group_, Base::in_, Base::lane_, Base::own_;
  using Base::received, Base::shared_, Base::slab_, Base::split_, Base::thread_, Base::tile_;

  __device__ __forceinline__ PushedProduct(const FewRowsInput<bf16>& input, NoFinish& op)
      : Base(input, op) {}

  // The barriers, and the first sets of W, by one thread before it arrives at the cluster.
  __device__ __forceinline__ void begin() const {
    prefetch_map(*in_.tiles);
    prefetch_map(*in_.rows);
    this->expect_sums(in_.moments ? 0 : S::kSplit * S::kGroups * count(split_) * 8);
#pragma unroll
    for (int i = S::kSetsCame; i < S::kCounted; ++i) barrier_init(shared_address(barrier(i)), 1);
    barrier_init_fence();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) barrier_expect(tokens_came(step), S::kTokenBytes);
#pragma unroll 1
    for (int set = 0; set < S::kRing; ++set) fetch_set(set);
  }
  // x, once it is there, and while it is on its way the moments that the kernel in front has left.
  __device__ __forceinline__ void fetch_rows() const {
    if (thread_ == 0) fetch_tokens();
    if (in_.moments) merge_moments();
  }

  // All sets, to where they are finished: behind it only barriers say what has come.
  __device__ __forceinline__ void multiply() {
    uint32_t x[S::kTurns][4][4];
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
      const int step = turn * S::kGroups + group_;
      barrier_wait(tokens_came(step), 0);
      this->load_operands(step, x[turn]);
    }
    float y[S::kSet / 2], mine[S::kSet / 4];
    float2 moments = {0.0f, 0.0f};
#pragma unroll
    for (int set = 0; set <= S::kSets; ++set) {
      if (set > 0) {
        wgmma_wait<0>();
        if (S::kOver && set == 2) cluster_arrive_relaxed();  // the second set is used
        hand_half(y, mine);
        __syncthreads();
        if (set == 1 && S::kSets > S::kRing && thread_ == 0) fetch_set(S::kRing);
      }
      if (set < S::kSets) {
        barrier_wait(set_came(set), set / S::kRing);
        product(x, set, y);
      }
      if (set == 0) {
        if (!in_.moments) moments = own_moments();
        wgmma_sync(1 + group_, 128);  // what is handed goes where the warpgroup has read
        if (S::kOver) cluster_arrive_relaxed();  // x is used
        continue;
      }
      take_half(mine);
      if (set < S::kSets) __syncthreads();  // nobody reads what is handed any more
      if (S::kOver && set != 2) cluster_wait();  // there is room in all blocks
      push_half(mine, set - 1);
      if (set == 1 && !in_.moments) push_moments(moments);
    }
  }

  // What a set is finished with; moments come with the first.
  __device__ __forceinline__ void await_sums(int set) const {
    wait_bytes(barrier(0));
    wait_bytes(barrier(set));
  }
  // Four numbers of a row that this block finishes.
  __device__ __forceinline__ float4 finished(int set, int row, int column, const float4& bias) const {
    const float2 m = received_moments(row);
    const float4 y = received(set, row, column), g = received(set, S::kOwnTokens + 1, column);
    const float4 b = received(set, S::kOwnTokens, column);
    return {(y.x - m.x * g.x) * m.y + (b.x + bias.x), (y.y - m.x * g.y) * m.y + (b.y + bias.y),
            (y.z - m.x * g.z) * m.y + (b.z + bias.z), (y.w - m.x * g.w) * m.y + (b.w + bias.w)};
  }

 private:
  __device__ __forceinline__ void fetch_tokens() const {
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      copy_tile(*in_.rows, shared_address(this->tokens(step)), tokens_came(step),
                split_ * S::kDepth + step * 64, 0);
    }
  }

  // Of the rows that this block finishes.
  __device__ __forceinline__ float2* merged() const {
    return reinterpret_cast<float2*>(shared_ + S::kMerged);
  }
  __device__ __forceinline__ void merge_moments() const {
    if (thread_ >= (S::kOwnTokens * 4 + 31) / 32 * 32) return;
    const int row = thread_ / 4;
    SlabMoments slabs;
    slabs.load(in_.moments, in_.slabs, min(first(split_) + row, in_.tokens - 1));
    const float2 found = slabs.merge(in_.slabs, S::kInner, in_.eps);
    if (row < S::kOwnTokens && thread_ % 4 == 0) merged()[row] = found;
  }
  // A row's mean, and what differences from it are multiplied by.
  __device__ __forceinline__ float2 received_moments(int row) const {
    if (in_.moments) return merged()[row];
    const float2* p = reinterpret_cast<const float2*>(shared_ + S::kMoments) + row;
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

  __device__ __forceinline__ uint32_t set_came(int set) const {
    return shared_address(barrier(S::kSetsCame + set % S::kRing));
  }
  __device__ __forceinline__ uint32_t tokens_came(int step) const {
    return shared_address(barrier(S::kTokensCame + step));
  }
  __device__ __forceinline__ uint32_t set_at(int set) const {
    return shared_address(shared_ + set % S::kRing * S::kSetBytes);
  }
  __device__ __forceinline__ void fetch_set(int set) const {
    barrier_expect(set_came(set), S::kSetBytes);
#pragma unroll 1
    for (int step = 0; step < S::kSteps; ++step) {
      copy_tile(*in_.tiles, set_at(set) + step * S::kWeightBytes, set_came(set),
                split_ * S::kDepth + step * 64, S::box_row(tile_, set));
    }
  }

  __device__ __forceinline__ void product(const uint32_t (&x)[S::kTurns][4][4], int set,
                                          float (&y)[S::kSet / 2]) const {
    const uint64_t w = wgmma_tile(set_at(set) + group_ * S::kWeightBytes);
    wgmma_begin();
#pragma unroll
    for (int turn = 0; turn < S::kTurns; ++turn) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaRegisters<S::kSet>::run(y, x[turn][part],
                                     wgmma_step(w, part) + turn * (S::kGroups * S::kWeightBytes / 16),
                                     turn > 0 || part > 0);
      }
    }
    wgmma_commit();
  }

  // The half of the columns that the other warpgroup pushes, to the thread that has the same tokens.
  __device__ __forceinline__ float4* handed(int group) const {
    return reinterpret_cast<float4*>(shared_ + S::kHanded + group * S::kTokenBytes) + thread_ % 128;
  }
  __device__ __forceinline__ void hand_half(const float (&y)[S::kSet / 2], float (&mine)[S::kSet / 4]) const {
    constexpr int kHalf = S::kSet / 4;
#pragma unroll
    for (int i = 0; i < kHalf; i += 4) {
      float4 theirs;
      theirs.x = group_ ? y[i] : y[kHalf + i], mine[i] = group_ ? y[kHalf + i] : y[i];
      theirs.y = group_ ? y[i + 1] : y[kHalf + i + 1], mine[i + 1] = group_ ? y[kHalf + i + 1] : y[i + 1];
      theirs.z = group_ ? y[i + 2] : y[kHalf + i + 2], mine[i + 2] = group_ ? y[kHalf + i + 2] : y[i + 2];
      theirs.w = group_ ? y[i + 3] : y[kHalf + i + 3], mine[i + 3] = group_ ? y[kHalf + i + 3] : y[i + 3];
      handed(group_)[i / 4 * 128] = theirs;
    }
  }
  __device__ __forceinline__ void take_half(float (&mine)[S::kSet / 4]) const {
#pragma unroll
    for (int i = 0; i < S::kSet / 4; i += 4) {
      const float4 v = handed(1 - group_)[i / 4 * 128];
      mine[i] += v.x, mine[i + 1] += v.y, mine[i + 2] += v.z, mine[i + 3] += v.w;
    }
  }

  // Every row's sums to the block that finishes it, and those of shift and gain to all. These are two rows
  // each; four lanes have either, one for each block.
  __device__ __forceinline__ void push_half(float (&mine)[S::kSet / 4], int set) const {
    static_assert(S::kSplit == 4, "as many as lanes that have the same");
    const bool vectors = slab_ == S::kMaxTokens / 16;
    typename Base::Target to = this->target();
    if (vectors) {
      to.keep = lane_ < 16;
      to.rank = to.keep ? lane_ / 4 % 2 * 2 + lane_ % 2 : split_;
      to.slot = S::kOwnTokens + lane_ / 8;
    }
    float4 v[S::kSet / 16];
#pragma unroll
    for (int j = 0; j < S::kSet / 16; ++j) {
      float* y = mine + 4 * j;
      if (vectors) {
        y[0] += __shfl_xor_sync(0xffffffffu, y[0], 4);
        y[1] += __shfl_xor_sync(0xffffffffu, y[1], 4);
        y[2] = y[0], y[3] = y[1];
      }
      v[j] = WideSums::row(y, lane_ % 2 != 0);
    }
    this->push_sums(to, set, group_ * (S::kSet / 2) + this->column(), v);
  }

  // Squares and totals of a token in this warpgroup's steps, of two tokens of four lanes one each.
  __device__ __forceinline__ float2 own_moments() const {
    float squares[2] = {}, totals[2] = {};
    if (slab_ < S::kMaxTokens / 16) {
#pragma unroll 1
      for (int turn = 0; turn < S::kTurns; ++turn) {
        this->add_moments(turn * S::kGroups + group_, squares, totals);
      }
    }
    const float2 upper = {lane_sum<4>(squares[0]), lane_sum<4>(totals[0])};
    const float2 lower = {lane_sum<4>(squares[1]), lane_sum<4>(totals[1])};
    return lane_ % 4 == 0 ? upper : lower;
  }
  __device__ __forceinline__ void push_moments(const float2& moments) const {
    const int half = lane_ % 4, token = slab_ * 16 + half * 8 + lane_ / 4;
    const bool keep = slab_ < S::kMaxTokens / 16 && half < 2 && token < in_.tokens;
    const int rank = keep ? token / own_ : split_;
    const uint32_t base = remote_address(shared_, rank);
    const int at = (split_ * S::kGroups + group_) * S::kOwnTokens + token - rank * own_;
    push(base + S::kMoments + at * 8, base + S::kBarriers, moments, keep);
  }
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
