// normed_product_sm90: y = n W^T of E4M3 for up to 64 rows, n = (x - mean) / sqrt(var + eps), x [A, K] bf16
// (sm_90a); with kConditioned n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift, and with kMean besides
// n = (x - mean) / sqrt(var + eps) * gain + shift. What is quantised has to be normal already, so its moments
// come first: a block knows those of its columns as soon as it has loaded them, and the blocks of a cluster,
// which split K, tell each other.
//
// A warp takes whole rows of the block's columns, to registers, all at once. It adds up their moments and
// sends them to its neighbours, unless the kernel in front has left the rows' moments, as it does for norms
// that take off a mean. Then it leaves n, quantised, in the tiles that the products read, as they lie in
// streamed_product_sm90.cuh, piece by piece. The weight's share of a block is small in 8 bits, and all of it
// is under way before pdl_wait().
#pragma once

#include <type_traits>

#include "streamed_product_sm90.cuh"

namespace flashrt {

template <class S, class Op>
class NormedProduct;

// How kThreads share kTokens rows of kDepth columns: a warp has whole rows, a lane neighbours in a piece.
template <int kThreads, int kTokens, int kDepth, bool kConditioned_, bool kMean_>
struct NormedRows {
  static constexpr bool kConditioned = kConditioned_, kMean = kMean_;
  static constexpr int kWarps = kThreads / 32, kWarpTokens = kTokens / kWarps;
  static constexpr int kNeighbours = kDepth % 256 == 0 ? 8 : 4;
  static constexpr int kPieceSteps = kNeighbours / 4, kPieces = kDepth / (32 * kNeighbours);
  static constexpr int kConditionBytes = kConditioned ? kDepth * 8 : 0;  // two floats a column
  static_assert(kWarpTokens * kWarps == kTokens, "whole tokens a warp");
  static_assert(kPieces * 32 * kNeighbours == kDepth, "whole pieces a lane");
};

// kRows of W and kSteps of 128 columns a block, kSplit blocks in a cluster.
template <int kRows_, int kSteps_, int kSplit_, int kMaxTokens_ = 48, bool kConditioned_ = false>
struct NormedShape
    : StreamedShape<kRows_, kSteps_, kSplit_, kSteps_, false, kMaxTokens_, false, kSteps_, true, e4m3>,
      NormedRows<256, kMaxTokens_, 128 * kSteps_, kConditioned_, !kConditioned_> {
  using Streamed =
      StreamedShape<kRows_, kSteps_, kSplit_, kSteps_, false, kMaxTokens_, false, kSteps_, true, e4m3>;
  template <class Op>
  using Product = NormedProduct<NormedShape, Op>;
  // Behind what the product has: moments of all blocks of the cluster, their barrier, scale and shift.
  static constexpr int kMoments = Streamed::kSharedBytes;
  static constexpr int kMomentsEnd = kMoments + kSplit_ * Streamed::kMaxTokens * 8;
  static constexpr int kMomentsCame = (kMomentsEnd - Streamed::kBarriers) / 8;
  static constexpr int kCondition = kMomentsEnd + 16;
  static constexpr int kSharedBytes = kCondition + NormedShape::kConditionBytes;
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class NormedProduct : protected StreamedProduct<S, Op> {
 protected:
  using Base = StreamedProduct<S, Op>;
  using Base::barrier, Base::floats, Base::full, Base::group_, Base::in_, Base::lane_, Base::shared_;
  using Base::split_, Base::thread_, Base::tokens, Base::warp_;
  static constexpr int kFours = S::kNeighbours / 4;  // of a lane in a piece

 public:
  __device__ __forceinline__ NormedProduct(const FewRowsInput<e4m3>& input, Op& op) : Base(input, op) {}

  __device__ __forceinline__ void run() {
    if (thread_ == 0) {
      this->expect_pushes();
      begin();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    this->prepare();
    const float factor = 1.0f / *in_.x_scale;
    if constexpr (S::kConditioned) leave_condition(factor);
    __syncthreads();  // the barriers and what conditions x
    cluster_wait();
    pdl_wait();
    this->fetch();
    float sums[S::kGroupRows / 2];
    multiply(factor, sums);
    __syncthreads();  // nobody reads what lies where the sums go
    this->leave_partials(sums);
    this->collect();
  }

 protected:
  // The barriers, and all of W, by one thread before it arrives at the cluster.
  __device__ __forceinline__ void begin() const {
    prefetch_map(*in_.tiles);
    if (!in_.moments) expect_bytes(barrier(S::kMomentsCame), (S::kSplit - 1) * in_.tokens * 8);
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) barrier_init(full(step), 1);
    barrier_init_fence();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      barrier_expect(full(step), S::kWeightBytes);
      this->fetch_weights(step);
    }
  }

  // What two neighbouring columns are multiplied by, and what is added then, to shared memory: registers have
  // room for those of one piece. Neighbouring lanes read neighbouring places.
  __device__ __forceinline__ void leave_condition(int k, float2 gain, float2 shift) const {
    constexpr int kPiece = 32 * S::kNeighbours;
    const int four = k / kPiece * (2 * kFours) + k % S::kNeighbours / 4;
    float* place = floats(S::kCondition) + four * 128 + k % kPiece / S::kNeighbours * 4 + k % 4;
    *reinterpret_cast<float2*>(place) = gain;
    *reinterpret_cast<float2*>(place + kFours * 128) = shift;
  }

  // Takes x, and multiplies its rows, normal and quantised: factor is what n is multiplied by for that.
  __device__ __forceinline__ void multiply(float factor, float (&sums)[S::kGroupRows / 2]) const {
    SlabMoments slabs;
    const int merged = min(thread_ / 4, in_.tokens - 1);
    slabs.load(in_.moments, in_.slabs, merged);  // of none where there are none
    __syncwarp();  // the assembler would ask for them behind x
    Rows x;  // of rows that there are not, what nobody uses
    load(x);
    Condition condition;
    if constexpr (S::kConditioned) load(condition, 0);
    if (in_.moments) {
      const float2 found = slabs.merge(in_.slabs, S::kInner, in_.eps);
      if (thread_ % 4 == 0) known_moments()[merged] = found;
      __syncthreads();
    } else {
      share_moments(x);
      settle(x);
    }
    multiply(x, condition, factor, sums);
  }

 private:
  using Piece = std::conditional_t<S::kNeighbours == 8, uint4, uint2>;
  using Rows = Piece[S::kWarpTokens][S::kPieces];
  using Numbers = float[S::kNeighbours];
  // What the columns of a piece, normal, are multiplied by, and what is added then.
  struct Condition {
    float4 gains[kFours], shifts[kFours];
  };

  __device__ __forceinline__ int token(int i) const { return warp_ + i * S::kWarps; }

  __device__ __forceinline__ void leave_condition(float factor) const {
#pragma unroll
    for (int k = thread_ * 2; k < S::kDepth; k += S::kThreads * 2) {
      const float2 scale = *reinterpret_cast<const float2*>(in_.scale + split_ * S::kDepth + k);
      const float2 shift = *reinterpret_cast<const float2*>(in_.shift + split_ * S::kDepth + k);
      leave_condition(k, {(1.0f + scale.x) * factor, (1.0f + scale.y) * factor},
                      {shift.x * factor, shift.y * factor});
    }
  }
  __device__ __forceinline__ void load(Condition& c, int piece) const {
    const float4* from = reinterpret_cast<const float4*>(floats(S::kCondition)) + lane_;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      c.gains[i] = from[(piece * 2 * kFours + i) * 32];
      c.shifts[i] = from[((piece * 2 + 1) * kFours + i) * 32];
    }
  }

  // A piece of neighbouring columns at a time: what is used first is asked for first.
  __device__ __forceinline__ void load(Rows& x) const {
    const bf16* rows[S::kWarpTokens];
    rows[0] = in_.x + static_cast<size_t>(warp_) * in_.x_stride + split_ * S::kDepth + lane_ * S::kNeighbours;
#pragma unroll
    for (int i = 1; i < S::kWarpTokens; ++i) {
      rows[i] = rows[i - 1] + static_cast<size_t>(S::kWarps) * in_.x_stride;
    }
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < S::kWarpTokens; ++i) {
        load_fresh(x[i][piece], rows[i] + piece * (32 * S::kNeighbours), token(i) < in_.tokens);
      }
      // The assembler would ask for whole rows, which is as good where a lane has more of them.
      if constexpr (S::kPieceSteps == 1) __syncwarp();
    }
  }
  __device__ __forceinline__ static void unpack(const Piece& words, Numbers& v) {
    if constexpr (S::kNeighbours == 8) {
      unpack8(words, v);
    } else {
      const float2 a = unpack2(words.x), b = unpack2(words.y);
      v[0] = a.x, v[1] = a.y, v[2] = b.x, v[3] = b.y;
    }
  }

  // Sums and sums of squares of the block's columns, by the first lanes to every block, also to this one.
  __device__ __forceinline__ void share_moments(const Rows& x) const {
    float2 own = {0.0f, 0.0f};  // of the token that this lane sends
#pragma unroll
    for (int i = 0; i < S::kWarpTokens; ++i) {
      float2 sum = {0.0f, 0.0f};
#pragma unroll
      for (int piece = 0; piece < S::kPieces; ++piece) {
        Numbers v;
        unpack(x[i][piece], v);
#pragma unroll
        for (int j = 0; j < S::kNeighbours; ++j) {
          if constexpr (S::kMean) sum.x += v[j];
          sum.y = fmaf(v[j], v[j], sum.y);
        }
      }
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        if constexpr (S::kMean) sum.x += __shfl_xor_sync(0xffffffffu, sum.x, lanes);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, lanes);
      }
      if (lane_ == i) own = sum;
    }
    if (lane_ < S::kWarpTokens && token(lane_) < in_.tokens) {
      const int at = S::kMoments + (split_ * S::kMaxTokens + token(lane_)) * 8;
      *reinterpret_cast<float2*>(shared_ + at) = own;
#pragma unroll
      for (int further = 1; further < S::kSplit; ++further) {
        const uint32_t base = remote_address(shared_, (split_ + further) % S::kSplit);
        push(base + at, base + S::kBarriers + S::kMomentsCame * 8, own);
      }
    }
    __syncwarp();
    wait_bytes(barrier(S::kMomentsCame));
  }
  // Unpacked again where they are used, as registers hold them packed only.
  __device__ __forceinline__ static void settle(Rows& x) {
#pragma unroll
    for (int i = 0; i < S::kWarpTokens; ++i) {
#pragma unroll
      for (int piece = 0; piece < S::kPieces; ++piece) {
        flashrt::settle(x[i][piece].x), flashrt::settle(x[i][piece].y);
        if constexpr (S::kNeighbours == 8) {
          flashrt::settle(x[i][piece].z), flashrt::settle(x[i][piece].w);
        }
      }
    }
  }

  // The moments that the kernel in front has left, merged; where else those of the blocks come.
  __device__ __forceinline__ float2* known_moments() const {
    return reinterpret_cast<float2*>(shared_ + S::kMoments);
  }
  // Mean, 0 where none is taken off, and what differences from it are multiplied by.
  __device__ __forceinline__ float2 moments(int token, float factor) const {
    if (in_.moments) return {known_moments()[token].x, known_moments()[token].y * factor};
    float2 sum = {0.0f, 0.0f};
#pragma unroll
    for (int from = 0; from < S::kSplit; ++from) {
      const int at = S::kMoments + (from * S::kMaxTokens + token) * 8;
      const float2 v = *reinterpret_cast<const float2*>(shared_ + at);
      sum = {sum.x + v.x, sum.y + v.y};
    }
    const float mean = S::kMean ? sum.x * (1.0f / S::kInner) : 0.0f;
    const float variance = fmaxf(sum.y * (1.0f / S::kInner) - mean * mean, 0.0f);
    return {mean, rsqrtf(variance + in_.eps) * factor};
  }

  __device__ __forceinline__ static float at(const float4 (&v)[kFours], int j) {
    const float4& four = v[j / 4];
    return j % 4 == 0 ? four.x : j % 4 == 1 ? four.y : j % 4 == 2 ? four.z : four.w;
  }

  // A piece of the rows, normal and quantised; of rows that there are not nobody stores what comes of them.
  // norms: of each token what it is multiplied by and what is added then.
  __device__ __forceinline__ void leave(const Rows& x, int piece, const float2 (&norms)[S::kWarpTokens],
                                        const Condition& c) const {
#pragma unroll
    for (int i = 0; i < S::kWarpTokens; ++i) {
      const int row = token(i);
      if (row >= in_.tokens) break;
      Numbers v;
      unpack(x[i][piece], v);
#pragma unroll
      for (int j = 0; j < S::kNeighbours; ++j) {
        if constexpr (S::kMean) v[j] = fmaf(v[j], norms[i].x, norms[i].y);
        if constexpr (S::kConditioned) {
          v[j] = fmaf(S::kMean ? v[j] : v[j] * norms[i].x, at(c.gains, j), at(c.shifts, j));
        }
      }
      const int at = lane_ * S::kNeighbours, unit = at % 128 / 16 ^ (row & 7);
      unsigned char* place = tokens(piece * S::kPieceSteps + at / 128) + row * 128 + unit * 16 + at % 16;
      if constexpr (S::kNeighbours == 8) {
        *reinterpret_cast<uint2*>(place) = {quantise4(v[0], v[1], v[2], v[3]),
                                            quantise4(v[4], v[5], v[6], v[7])};
      } else {
        *reinterpret_cast<uint32_t*>(place) = quantise4(v[0], v[1], v[2], v[3]);
      }
    }
  }

  // A piece has two steps of K, one a warpgroup, or one, of which each takes half of the rows of W; while the
  // tensor cores have them the next piece is made.
  __device__ __forceinline__ void multiply(const Rows& x, Condition& condition, float factor,
                                           float (&sums)[S::kGroupRows / 2]) const {
    if constexpr (S::kConditioned) factor = 1.0f;  // condition has it
    static_assert(S::kGroups == 2 && S::kPieceSteps * S::kRows == 2 * S::kGroupRows, "shared by warpgroups");
    float2 norms[S::kWarpTokens];
#pragma unroll
    for (int i = 0; i < S::kWarpTokens; ++i) {
      const float2 m = moments(min(token(i), in_.tokens - 1), factor);
      norms[i] = {m.y, S::kMean ? -m.x * m.y : 0.0f};
    }
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) {
      leave(x, piece, norms, condition);
      publish_shared();
      __syncthreads();  // the piece
      if (piece == 0) pdl_trigger();  // x has come: what the next kernel fetches ahead would be in its way
      const int step = S::kPieceSteps == 2 ? piece * 2 + group_ : piece;
      barrier_wait(full(step), 0);
      this->multiply_step(step, sums, piece > 0);
      if (S::kConditioned && piece + 1 < S::kPieces) load(condition, piece + 1);
    }
    wgmma_wait<0>();
  }
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
