// staged_product_sm90: y = n W^T for up to 14 rows x [A, K], n their conditioned RMS norm, and int8 weights,
// on warpgroup products (sm_90a), for a kernel that is to begin beside those in front of it: bulk copies
// bring W to shared memory before pdl_wait(), and sums take eight registers, not skinny_product's 32.
//
// Weight rows take the 64-row side of a product, tokens the n side. A block owns 64 rows of W, the columns
// of which are halved between two warpgroups. Each warp takes its share of x, all of it at once, conditions
// it and puts it down where its warpgroup's products read it. Weights go from shared memory through
// registers, where they are widened. A lane takes eight consecutive k of a row for two products, and of the
// four words of a piece of x word w goes to unit w of the four 16-byte units of its 32 k:
// few_rows_product_sm90.cuh has the same order.
#pragma once

#include <cstdint>

#include "few_rows.cuh"
#include "mma.cuh"
#include "pdl.cuh"
#include "wgmma.cuh"

namespace flashrt {

template <class S, class Op>
class StagedProduct;

// kSteps: 64-wide pieces of K a warpgroup.
template <int kSteps_>
struct StagedShape {
  template <class Op>
  using Product = StagedProduct<StagedShape, Op>;
  using Weight = int8_t;
  using Piece = WeightPiece<Weight>;  // eight neighbours in a row of W
  static constexpr bool kWhole = true, kNorm = true, kCentred = false, kSteady = false;
  static constexpr bool kBlockScope = true, kOwnStays = false;
  static constexpr int kSteps = kSteps_, kSplit = 1, kTokens = 16;
  static constexpr int kMaxTokens = kTokens - 2;  // the last two carry shift
  static constexpr int kGroups = 2, kWarps = 4 * kGroups, kThreads = 32 * kWarps, kRows = 64;
  static constexpr int kGroupDepth = 64 * kSteps, kDepth = kGroups * kGroupDepth, kInner = kDepth;
  static constexpr int kChunks = kDepth / 32 / kWarps;  // 32-wide pieces of x a warp
  static constexpr int kItems = kRows / 4, kOwn = kItems;  // groups of four outputs of a token
  static_assert(kSteps % 2 == 0, "whole pieces a warp");

  // Shared memory: x as tiles of 64 columns, the place of which partial sums take, and rows of W. Pitches
  // keep what is read or written together apart in the banks.
  static constexpr int kTileBytes = kTokens * 128, kXBytes = kGroups * kSteps * kTileBytes;
  static constexpr int kPitch = kRows + 4, kPartial = kTokens * kPitch * 4, kPartials = 0;
  static constexpr int kPartRows = kRows, kParts = kGroups, kSquareParts = kWarps;
  static_assert(kParts * kPartial <= kXBytes, "room for partial sums");
  static constexpr int kWeights = kXBytes, kRowBytes = kDepth + 32;
  static constexpr int kScale = kWeights + kRows * kRowBytes;
  static constexpr int kSquares = kScale + kDepth * 2;
  static constexpr int kBarriers = kSquares + kSquareParts * kTokens * 4;
  // A block keeps its sums.
  static constexpr int kReceived = kBarriers, kReceivedSquares = kBarriers;
  static constexpr int kSharedBytes = (kBarriers + 2 * 8 + 15) / 16 * 16;
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class StagedProduct : FewRows<S, Op> {
  using Base = FewRows<S, Op>;
  using Base::barrier, Base::floats, Base::in_, Base::lane_, Base::op_, Base::shared_;
  using Base::thread_, Base::tile_, Base::warp_, Base::kWeightsCame;
  using Piece = typename S::Piece;

 public:
  __device__ __forceinline__ StagedProduct(const FewRowsInput<int8_t>& input, Op& op)
      : Base(input, op) {
    group_ = warp_ / 4;
    slab_ = warp_ % 4;  // of 16 rows of W
    row_ = lane_ / 4;
    part_ = lane_ % 4;
    first_k_ = warp_ * S::kChunks * 32 + part_ * 8;
  }

  __device__ __forceinline__ void run() {
    pdl_trigger();
    if (thread_ == 0) expect_bytes(barrier(kWeightsCame), S::kRows * S::kDepth);
    __syncwarp();
    fetch_condition();  // before the weights, behind which it would come
    if (warp_ == 0) fetch_weights();
    this->prepare();
    __syncthreads();  // the barrier, and scale
    pdl_wait();
    fetch_tokens();
    this->fetch();
    widening_.begin();
    this->wait(kWeightsCame);
    multiply();
    this->collect();
  }

 private:
  // A row of W by its row in the products: two rows of a thread are neighbours.
  __device__ __forceinline__ void fetch_weights() const {
#pragma unroll
    for (int row = lane_; row < S::kRows; row += 32) {
      const int local = row / 16 * 16 + row % 8 * 2 + row / 8 % 2;
      const int from = op_.weight_row(tile_, local / 8, local % 8);
      copy_run(weight_row(row), in_.weight + static_cast<size_t>(from) * S::kInner, S::kDepth,
               barrier(kWeightsCame));
    }
    __syncwarp();
  }
  __device__ __forceinline__ unsigned char* weight_row(int row) const {
    return shared_ + S::kWeights + row * S::kRowBytes;
  }

  __device__ __forceinline__ bool is_shift() const { return row_ >= 6; }  // among tokens 8-15

  // Scale, and shift as the last two tokens: its bf16 value and the rest.
  __device__ __forceinline__ void fetch_condition() {
    float scale[8];
    this->load_scale(scale);
    if (is_shift()) {
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) {
        float v[8];
        uint32_t words[4];
        load8(in_.shift + first_k_ + chunk * 32, v);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = pack2(v[2 * i], v[2 * i + 1]);
          const float2 rounded = unpack2(words[i]);
          if (row_ == 7) words[i] = pack2(v[2 * i] - rounded.x, v[2 * i + 1] - rounded.y);
        }
        tokens_[chunk][1] = {words[0], words[1], words[2], words[3]};
      }
    }
    this->leave_scale(scale);
  }

  __device__ __forceinline__ void fetch_tokens() {
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = half * 8 + row_;
        const bf16* p = in_.x + token * in_.x_stride + first_k_ + chunk * 32;
        load_fresh(tokens_[chunk][half], p, token < in_.tokens);
      }
    }
  }

  // Conditions a chunk of x and puts it where the products read it.
  __device__ __forceinline__ void stage(int chunk, float (&squares)[2][4]) {
    uint4(&x)[2] = tokens_[chunk];
    const int at = warp_ * S::kChunks + chunk;  // of the block's 32-wide pieces
    const uint4 scale = *reinterpret_cast<const uint4*>(shared_ + S::kScale + at * 64 + part_ * 16);
    add_squares(squares, x);
    x[0] = this->grow(x[0], scale);
    const uint4 grown = this->grow(x[1], scale);
    if (!is_shift()) x[1] = grown;
    unsigned char* row = shared_ + at / 2 * S::kTileBytes + row_ * 128 + part_ * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t words[4] = {x[half].x, x[half].y, x[half].z, x[half].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint32_t*>(row + half * 1024 + ((at % 2 * 4) ^ row_ ^ i) * 16) = words[i];
      }
    }
  }

  // x x^T of 8 tokens with themselves has their sums of squares on its diagonal: values 0 and 1 of tokens
  // 0-7, values 2 and 3 of tokens 8-15.
  __device__ __forceinline__ static void add_squares(float (&squares)[2][4], const uint4 (&x)[2]) {
    const uint4 &a = x[0], &b = x[1];
    mma_k16(squares[0], {a.x, 0u, a.y, 0u}, a.x, a.y);
    mma_k16(squares[1], {0u, b.x, 0u, b.y}, b.x, b.y);
    mma_k16(squares[0], {a.z, 0u, a.w, 0u}, a.z, a.w);
    mma_k16(squares[1], {0u, b.z, 0u, b.w}, b.z, b.w);
  }
  __device__ __forceinline__ void leave_squares(const float (&squares)[2][4]) const {
    if (part_ != row_ / 2) return;  // not on the diagonal
    float* target = floats(S::kSquares) + warp_ * S::kTokens + row_;
    target[0] = row_ % 2 ? squares[0][1] : squares[0][0];
    target[8] = row_ % 2 ? squares[1][3] : squares[1][2];
  }

  __device__ __forceinline__ void multiply() {
    float squares[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) stage(chunk, squares);
    publish_shared();
    wgmma_sync(1 + group_, 128);
    float sums[S::kTokens / 2];
    const uint32_t first = shared_address(shared_ + group_ * S::kSteps * S::kTileBytes);
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      uint32_t w[4][4];
      load_operands(step, w);  // under the products of before
      if (step > 0) wgmma_wait<0>();
      wgmma_begin();
      const uint64_t x = wgmma_tile(first + step * S::kTileBytes);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        WgmmaRegisters<S::kTokens>::run(sums, w[part], wgmma_step(x, part), step > 0 || part > 0);
      }
      wgmma_commit();
    }
    leave_squares(squares);
    wgmma_wait<0>();
    __syncthreads();  // nobody reads what lies where the sums go
    leave_partials(sums);
  }

  // A step's operands of four products, 16 columns each.
  __device__ __forceinline__ void load_operands(int step, uint32_t (&w)[4][4]) const {
    const int k = group_ * S::kGroupDepth + step * 64 + part_ * 8;
    const unsigned char* p = weight_row(slab_ * 16 + row_) + k;
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk, p += 32) {
      const uint4 low = widening_(*reinterpret_cast<const Piece*>(p));
      const uint4 high = widening_(*reinterpret_cast<const Piece*>(p + 8 * S::kRowBytes));
      w[chunk * 2][0] = low.x, w[chunk * 2][1] = high.x, w[chunk * 2][2] = low.y, w[chunk * 2][3] = high.y;
      w[chunk * 2 + 1][0] = low.z, w[chunk * 2 + 1][1] = high.z;
      w[chunk * 2 + 1][2] = low.w, w[chunk * 2 + 1][3] = high.w;
    }
  }

  __device__ __forceinline__ void leave_partials(const float (&sums)[S::kTokens / 2]) const {
    float* target = floats(S::kPartials + group_ * S::kPartial) + slab_ * 16 + row_ * 2;
#pragma unroll
    for (int i = 0; i < S::kTokens / 4; ++i) {
      const int octet = i / 2, odd = i % 2, token = octet * 8 + part_ * 2 + odd;
      const bool keep = token < in_.tokens || token >= S::kTokens - 2;
      store_shared_if(keep, target + token * S::kPitch, {sums[octet * 4 + odd], sums[octet * 4 + 2 + odd]});
    }
  }

  int group_, slab_, row_, part_, first_k_;
  uint4 tokens_[S::kChunks][2] = {};
  Widening widening_;
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
