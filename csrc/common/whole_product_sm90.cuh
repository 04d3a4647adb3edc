// whole_product_sm90: y = n W^T for up to 60 rows n, x [A, K] behind a norm, and int8 weights (sm_90a), where
// what takes time is not the weight but what follows the kernel in front: x has come, lies conditioned where
// the products read it, they are made, and sums meet. So each of these happens once.
//
// Weight rows take the 64-row side of a product, from registers, tokens the n side, from shared memory. A
// warpgroup owns 64 rows of W. The copy engine brings W as it lies, in tiles of 64 columns, through a ring of the
// warpgroup's own, before pdl_wait() as many as it has places for. So nobody waits for another warpgroup, and no
// thread for a weight before it needs it.
//
// x passes through registers: all that a block reads of it is under way at once and left, conditioned, in tiles.
// A lane takes eight neighbours of a row of W for two products: the order of K inside them is free as long as
// both sides agree. So x is put down in that order: word w of such a piece of a token goes to unit w of the four
// 16-byte units of its 32 columns, beside those of its neighbours.
//
// The norm is that of a layer: the last tokens are its shift and gain (few_rows.cuh).
#pragma once

#include <cstdint>

#include "few_rows.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace flashrt {

template <class S, class Op>
class WholeProduct;

// kGroups warpgroups and kSteps of 64 columns a block, kSplit blocks in a cluster; kStages tiles in the ring of a
// warpgroup.
template <int kTokens_, int kGroups_, int kSteps_, int kSplit_, int kStages_>
struct WholeShape {
  template <class Op>
  using Product = WholeProduct<WholeShape, Op>;
  using Weight = int8_t;
  using Piece = WeightPiece<Weight>;  // eight neighbours in a row of W
  static constexpr bool kWhole = true, kNorm = true, kCentred = true, kSteady = true;
  static constexpr bool kBlockScope = true, kOwnStays = kSplit_ > 1;
  static constexpr int kTokens = kTokens_, kSpecial = 4, kMaxTokens = kTokens - kSpecial;
  static constexpr int kGroups = kGroups_, kRows = 64 * kGroups, kThreads = 128 * kGroups;
  static constexpr int kOctets = kTokens / 8, kWarps = 4 * kGroups, kChunks = 2 * kSteps_ / kWarps;
  static constexpr int kSteps = kSteps_, kSplit = kSplit_, kStages = kStages_;
  static constexpr int kDepth = 64 * kSteps, kInner = kDepth * kSplit;
  static constexpr int kItems = kRows / 4;      // groups of four outputs of a token
  static constexpr int kOwn = kItems / kSplit;  // of them, those this block finishes
  static_assert(kTokens % 8 == 0 && kItems % kSplit == 0, "whole parts");
  static_assert(kChunks * kWarps == 2 * kSteps, "each warp takes as many columns of x");
  static_assert(kStages <= kSteps && kTokens <= kThreads, "each place is used");

  // Shared memory. Partial sums take the place of x and the rings; their pitch keeps the tokens of a warp
  // apart in the banks.
  static constexpr int kXBytes = kTokens * 128, kTileBytes = 64 * 64, kRing = kSteps * kXBytes;
  static constexpr int kFetched = kRing + kGroups * kStages * kTileBytes;
  static constexpr int kPartRows = 64, kParts = 1, kSquareParts = 1;
  static constexpr int kPitch = 64 + 4, kPartial = kTokens * kPitch * 4, kPartials = 0;
  static constexpr int kSummed = kGroups * kPartial;
  static constexpr int kSquares = kFetched > kSummed ? kFetched : kSummed;
  static constexpr int kTotals = kSquares + kWarps * kTokens * 4;
  static constexpr int kReceived = kTotals + kWarps * kTokens * 4;
  static constexpr int kFrom = kSplit - (kOwnStays ? 1 : 0);
  static constexpr int kReceivedSquares = kReceived + kFrom * kTokens * kOwn * 16;
  static constexpr int kBarriers = kReceivedSquares + kFrom * kTokens * 8;
  static constexpr int kSharedBytes = (kBarriers + (1 + kGroups * kStages) * 8 + 15) / 16 * 16;
  static_assert(kXBytes % 1024 == 0 && kReceived % 16 == 0 && kBarriers % 8 == 0, "aligned");
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class WholeProduct : FewRows<S, Op> {
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::floats, Base::in_, Base::lane_, Base::op_, Base::shared_, Base::split_;
  using Base::thread_, Base::tile_, Base::warp_;
  static constexpr int kTilesCame = 1;  // barriers

 public:
  __device__ __forceinline__ WholeProduct(const FewRowsInput<int8_t>& input, Op& op) : Base(input, op) {
    group_ = __shfl_sync(0xffffffffu, warp_ / 4, 0);  // the same for a warp, and known to be
    row_ = lane_ / 4;
    part_ = lane_ % 4;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    if (thread_ % 128 == 0) begin();
    __syncwarp();
    if constexpr (S::kSplit > 1) cluster_arrive_relaxed();
    this->prepare();
    const Condition condition = load_condition();
    uint4 x[S::kChunks][S::kOctets] = {};
    pdl_wait();
    load_tokens(x);
    this->fetch();
    widening_.begin();
    leave_tokens(x, condition);
    publish_shared();
    __syncthreads();  // x and the barriers
    float sums[S::kTokens / 2];
    multiply(sums);
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
    add_up_moments();
    if constexpr (S::kSplit > 1) cluster_wait();
    this->collect();
  }

 private:
  __device__ __forceinline__ uint32_t came(int stage) const {
    return shared_address(barrier(kTilesCame + group_ * S::kStages + stage));
  }
  __device__ __forceinline__ unsigned char* tile(int stage) const {
    return shared_ + S::kRing + (group_ * S::kStages + stage) * S::kTileBytes;
  }

  // A warpgroup's barriers and first tiles, by one of its threads.
  __device__ __forceinline__ void begin() const {
    if (thread_ == 0 && S::kSplit > 1) this->expect_pushes();
#pragma unroll 1
    for (int stage = 0; stage < S::kStages; ++stage) barrier_init(came(stage), 1);
    barrier_init_fence();
#pragma unroll 1
    for (int stage = 0; stage < S::kStages; ++stage) fetch_tile(stage, stage);
  }
  __device__ __forceinline__ void fetch_tile(int step, int stage) const {
    barrier_expect(came(stage), S::kTileBytes);
    copy_tile(*in_.tiles, shared_address(tile(stage)), came(stage), split_ * S::kDepth + step * 64,
              tile_ * S::kRows + group_ * 64);
  }

  // What conditions the columns of x that a thread takes, and what it puts down for the tokens behind.
  struct Condition {
    uint4 growth[S::kChunks], special[S::kChunks];
  };
  __device__ __forceinline__ Condition load_condition() const {
    Condition c;
#pragma unroll
    for (int i = 0; i < S::kChunks; ++i) {
      const int at = split_ * S::kDepth + (i * S::kWarps + warp_) * 32 + part_ * 8;
      float gain[8] = {}, v[8] = {};  // gain less one
      if (in_.scale) {
        load8(in_.scale + at, gain);
#pragma unroll
        for (int j = 0; j < 8; ++j) gain[j] -= 1.0f;
      }
      if (in_.shift) load8(in_.shift + at, v);
      c.growth[i] = pack8(gain);
      const int which = row_ - (8 - S::kSpecial);
      if (which >= 2) {
        unpack8(c.growth[i], v);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += 1.0f;
      }
      c.special[i] = pack8(v);
      if (which % 2 == 0) continue;
      float upper[8];  // the row behind has what rounding left
      unpack8(c.special[i], upper);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] -= upper[j];
      c.special[i] = pack8(v);
    }
    return c;
  }
  __device__ __forceinline__ static uint4 pack8(const float (&v)[8]) {
    return {pack2(v[0], v[1]), pack2(v[2], v[3]), pack2(v[4], v[5]), pack2(v[6], v[7])};
  }
  __device__ __forceinline__ static void unpack8(const uint4& words, float (&v)[8]) {
    const float2 a = unpack2(words.x), b = unpack2(words.y), c = unpack2(words.z), d = unpack2(words.w);
    v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y, v[4] = c.x, v[5] = c.y, v[6] = d.x, v[7] = d.y;
  }

  // A warp takes the same 32 columns of all tokens, a lane eight of them in every eighth token.
  __device__ __forceinline__ void load_tokens(uint4 (&x)[S::kChunks][S::kOctets]) const {
#pragma unroll
    for (int i = 0; i < S::kChunks; ++i) {
      const bf16* from = in_.x + split_ * S::kDepth + (i * S::kWarps + warp_) * 32 + part_ * 8;
#pragma unroll
      for (int octet = 0; octet < S::kOctets; ++octet) {
        const int token = octet * 8 + row_;
        load_fresh(x[i][octet], from + static_cast<size_t>(token) * in_.x_stride, token < in_.tokens);
      }
    }
  }
  __device__ __forceinline__ void leave_tokens(const uint4 (&x)[S::kChunks][S::kOctets],
                                               const Condition& condition) const {
    float squares[S::kOctets] = {}, totals[S::kOctets] = {};
#pragma unroll
    for (int i = 0; i < S::kChunks; ++i) {
      const int chunk = i * S::kWarps + warp_;
      unsigned char* step = shared_ + chunk / 2 * S::kXBytes;
#pragma unroll
      for (int octet = 0; octet < S::kOctets; ++octet) {
        add_moments(squares[octet], totals[octet], x[i][octet]);
        uint4 grown = this->grow(x[i][octet], condition.growth[i]);
        if (octet == S::kOctets - 1 && row_ >= 8 - S::kSpecial) grown = condition.special[i];
        put(step + (octet * 8 + row_) * 128, chunk % 2 * 4, grown);
      }
    }
#pragma unroll
    for (int octet = 0; octet < S::kOctets; ++octet) {
      const int at = warp_ * S::kTokens + octet * 8 + row_;
      const float square = sum_of_four(squares[octet]);
      const float total = sum_of_four(totals[octet]);
      if (part_ != 0) continue;
      floats(S::kSquares)[at] = square;
      floats(S::kTotals)[at] = total;
    }
  }
  // A piece into its row of 128 bytes, whose units are swizzled by the row.
  __device__ __forceinline__ void put(unsigned char* row, int unit, const uint4& x) const {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint32_t*>(row + (unit ^ row_ ^ i) * 16 + part_ * 4) = words[i];
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
  __device__ __forceinline__ static float sum_of_four(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
  }
  // What the warps have left of a token, to where the first one left its own; behind a barrier of the block.
  __device__ __forceinline__ void add_up_moments() const {
    if (thread_ >= in_.tokens) return;
    add_up(floats(S::kSquares) + thread_);
    add_up(floats(S::kTotals) + thread_);
  }
  __device__ __forceinline__ static void add_up(float* parts) {
    float sum = 0.0f;
#pragma unroll
    for (int warp = 0; warp < S::kWarps; ++warp) sum += parts[warp * S::kTokens];
    *parts = sum;
  }

  // Operands of two products are made while the two in front run.
  __device__ __forceinline__ void multiply(float (&sums)[S::kTokens / 2]) const {
    uint32_t w[2][2][4];
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      const int stage = step % S::kStages;
      barrier_wait(came(stage), step / S::kStages & 1);
      const uint64_t x = wgmma_tile(shared_address(shared_ + step * S::kXBytes));
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        if (step > 0) wgmma_wait<1>();
        load_operands(stage, chunk, w[chunk]);
        wgmma_begin();
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          WgmmaRegisters<S::kTokens>::run(sums, w[chunk][part], wgmma_step(x, chunk * 2 + part),
                                          step + chunk + part > 0);
        }
        wgmma_commit();
      }
      if (step + S::kStages < S::kSteps) {
        wgmma_sync(1 + group_, 128);  // all have read the tile
        if (thread_ % 128 == 0) fetch_tile(step + S::kStages, stage);
      }
    }
    wgmma_wait<0>();
  }

  // Which of a tile's rows a lane has, besides the one eight further on: those of half a warp meet no bank twice.
  __device__ __forceinline__ int tile_row() const {
    return warp_ % 4 * 16 + ((row_ & 1) | (row_ & 2) << 1 | (row_ & 4) >> 1);
  }
  // Operands of two products, 16 columns each.
  __device__ __forceinline__ void load_operands(int stage, int chunk, uint32_t (&w)[2][4]) const {
    const uint4 low = widening_(piece(stage, chunk, 0)), high = widening_(piece(stage, chunk, 8));
    w[0][0] = low.x, w[0][1] = high.x, w[0][2] = low.y, w[0][3] = high.y;
    w[1][0] = low.z, w[1][1] = high.z, w[1][2] = low.w, w[1][3] = high.w;
  }
  // Eight columns of the lane's row, or of the one further on. Rows of 64 bytes are swizzled in pairs.
  __device__ __forceinline__ typename S::Piece piece(int stage, int chunk, int further) const {
    const int row = tile_row() + further, unit = (chunk * 2 + part_ / 2) ^ (row / 2 & 3);
    return *reinterpret_cast<const typename S::Piece*>(tile(stage) + row * 64 + unit * 16 + part_ % 2 * 8);
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kTokens / 2]) const {
    float* target = floats(S::kPartials + group_ * S::kPartial) + tile_row();
#pragma unroll
    for (int i = 0; i < S::kTokens / 4; ++i) {
      const int octet = i / 2, odd = i % 2, token = octet * 8 + part_ * 2 + odd;
      const bool keep = token < in_.tokens || token >= S::kMaxTokens;
      store_shared_if(keep, target + token * S::kPitch, sums[octet * 4 + odd]);
      store_shared_if(keep, target + token * S::kPitch + 8, sums[octet * 4 + 2 + odd]);
    }
  }

  int group_, row_, part_;
  Widening widening_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
