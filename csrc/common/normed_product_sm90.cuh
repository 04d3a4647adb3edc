// normed_product_sm90: y = n W^T of E4M3 for up to 64 rows, n = (x - mean) / sqrt(var + eps), x [A, K] bf16
// (sm_90a); with kConditioned n = x / sqrt(mean(x^2) + eps) * (1 + scale) + shift. What is quantised has to
// be normal already, so its moments come first: a block knows those of its columns as soon as it has loaded
// them, and the blocks of a cluster, which split K, tell each other.
//
// A warp takes whole rows of the block's columns, to registers, all at once. It adds up their moments and
// sends them to its neighbours, unless the kernel in front has left the rows' moments, as it does for norms
// that take off a mean. Then it leaves n, quantised, in the tiles that the products read, as they lie in
// streamed_product_sm90.cuh, piece by piece. The weight's share of a block is small in 8 bits, and all of it
// is under way before pdl_wait().
#pragma once

#include "streamed_product_sm90.cuh"

namespace flashrt {

template <class S, class Op>
class NormedProduct;

// kRows of W and kSteps of 128 columns a block, kSplit blocks in a cluster.
template <int kRows_, int kSteps_, int kSplit_, int kMaxTokens_ = 48, bool kConditioned_ = false>
struct NormedShape
    : StreamedShape<kRows_, kSteps_, kSplit_, kSteps_, false, kMaxTokens_, false, kSteps_, true, e4m3> {
  using Streamed =
      StreamedShape<kRows_, kSteps_, kSplit_, kSteps_, false, kMaxTokens_, false, kSteps_, true, e4m3>;
  template <class Op>
  using Product = NormedProduct<NormedShape, Op>;
  static constexpr bool kConditioned = kConditioned_;
  static constexpr int kWarps = Streamed::kThreads / 32, kWarpTokens = Streamed::kMaxTokens / kWarps;
  static constexpr int kPieces = Streamed::kDepth / 256;  // of eight columns, a lane's of a token
  static_assert(kWarpTokens * kWarps == Streamed::kMaxTokens, "whole tokens a warp");
  static_assert(kPieces * 256 == Streamed::kDepth, "whole pieces a lane");
  // Behind what the product has: moments of all blocks of the cluster, and their barrier; then, two floats a
  // column, scale and shift.
  static constexpr int kMoments = Streamed::kSharedBytes;
  static constexpr int kMomentsCame = kMoments + kSplit_ * Streamed::kMaxTokens * 8;
  static constexpr int kCondition = kMomentsCame + 16;
  static constexpr int kSharedBytes = kCondition + (kConditioned ? Streamed::kDepth * 8 : 0);
};

#ifdef FLASHRT_SM90A

template <class S, class Op>
class NormedProduct : StreamedProduct<S, Op> {
  using Base = StreamedProduct<S, Op>;
  using Base::barrier, Base::floats, Base::full, Base::group_, Base::in_, Base::lane_, Base::shared_;
  using Base::split_, Base::thread_, Base::tokens, Base::warp_;
  using Rows = uint4[S::kWarpTokens][S::kPieces];
  // What eight columns, normal, are multiplied by, and what is added then.
  struct Condition {
    float4 gains[2], shifts[2];
  };

 public:
  __device__ __forceinline__ NormedProduct(const FewRowsInput<e4m3>& input, Op& op) : Base(input, op) {}

  __device__ __forceinline__ void run() {
    if (thread_ == 0) begin();
    __syncwarp();
    cluster_arrive_relaxed();
    this->prepare();
    const float factor = 1.0f / *in_.x_scale;
    if constexpr (S::kConditioned) leave_condition(factor);
    __syncthreads();  // the barriers and what conditions x
    Condition condition;
    if constexpr (S::kConditioned) load(condition, 0);
    cluster_wait();
    pdl_wait();
    SlabMoments slabs;
    const int merged = min(thread_ / 4, in_.tokens - 1);
    slabs.load(in_.moments, in_.slabs, merged);  // of none where there are none
    __syncwarp();  // the assembler would ask for them behind x
    Rows x;  // of rows that there are not, what nobody uses
    load(x);
    this->fetch();
    if (in_.moments) {
      const float2 found = slabs.merge(in_.slabs, S::kInner, in_.eps);
      if (thread_ % 4 == 0) known_moments()[merged] = found;
      __syncthreads();
    } else {
      share_moments(x);
      settle(x);
    }
    multiply(x, condition, factor);
    this->collect();
  }

 private:
  __device__ __forceinline__ uint64_t* moments_came() const {
    return reinterpret_cast<uint64_t*>(shared_ + S::kMomentsCame);
  }
  __device__ __forceinline__ int token(int i) const { return warp_ + i * S::kWarps; }

  __device__ __forceinline__ void begin() const {
    prefetch_map(*in_.tiles);
    this->expect_pushes();
    if (!in_.moments) expect_bytes(moments_came(), (S::kSplit - 1) * in_.tokens * 8);
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) barrier_init(full(step), 1);
    barrier_init_fence();
#pragma unroll
    for (int step = 0; step < S::kSteps; ++step) {
      barrier_expect(full(step), S::kWeightBytes);
      this->fetch_weights(step);
    }
  }

  // Of all columns to shared memory, with what n is divided by to become E4M3: registers have room for those
  // of one piece. Neighbouring lanes read neighbouring places.
  __device__ __forceinline__ void leave_condition(float factor) const {
#pragma unroll
    for (int k = thread_ * 2; k < S::kDepth; k += S::kThreads * 2) {
      const float2 scale = *reinterpret_cast<const float2*>(in_.scale + split_ * S::kDepth + k);
      const float2 shift = *reinterpret_cast<const float2*>(in_.shift + split_ * S::kDepth + k);
      float* place = floats(S::kCondition) + (k / 256 * 4 + k % 8 / 4) * 128 + k % 256 / 8 * 4 + k % 4;
      *reinterpret_cast<float2*>(place) = {(1.0f + scale.x) * factor, (1.0f + scale.y) * factor};
      *reinterpret_cast<float2*>(place + 256) = {shift.x * factor, shift.y * factor};
    }
  }
  __device__ __forceinline__ void load(Condition& c, int piece) const {
    const float4* from = reinterpret_cast<const float4*>(floats(S::kCondition)) + piece * 128 + lane_;
    c = {{from[0], from[32]}, {from[64], from[96]}};
  }

  // 256 neighbouring columns at a time, eight a lane: what is used first is asked for first.
  __device__ __forceinline__ void load(Rows& x) const {
    const bf16* rows[S::kWarpTokens];
    rows[0] = in_.x + static_cast<size_t>(warp_) * in_.x_stride + split_ * S::kDepth + lane_ * 8;
#pragma unroll
    for (int i = 1; i < S::kWarpTokens; ++i) {
      rows[i] = rows[i - 1] + static_cast<size_t>(S::kWarps) * in_.x_stride;
    }
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < S::kWarpTokens; ++i) {
        load_fresh(x[i][piece], rows[i] + piece * 256, token(i) < in_.tokens);
      }
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
        float v[8];
        unpack8(x[i][piece], v);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if constexpr (!S::kConditioned) sum.x += v[j];
          sum.y = fmaf(v[j], v[j], sum.y);
        }
      }
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) {
        if constexpr (!S::kConditioned) sum.x += __shfl_xor_sync(0xffffffffu, sum.x, lanes);
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
        push(base + at, base + S::kMomentsCame, own);
      }
    }
    __syncwarp();
    wait_bytes(moments_came());
  }
  // Unpacked again where they are used, as registers hold them packed only.
  __device__ __forceinline__ static void settle(Rows& x) {
#pragma unroll
    for (int i = 0; i < S::kWarpTokens; ++i) {
#pragma unroll
      for (int piece = 0; piece < S::kPieces; ++piece) {
        flashrt::settle(x[i][piece].x), flashrt::settle(x[i][piece].y);
        flashrt::settle(x[i][piece].z), flashrt::settle(x[i][piece].w);
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
    const float mean = S::kConditioned ? 0.0f : sum.x * (1.0f / S::kInner);
    const float variance = fmaxf(sum.y * (1.0f / S::kInner) - mean * mean, 0.0f);
    return {mean, rsqrtf(variance + in_.eps) * factor};
  }

  __device__ __forceinline__ static float at(const float4 (&v)[2], int j) {
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
      float v[8];
      unpack8(x[i][piece], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if constexpr (S::kConditioned) {
          v[j] = fmaf(v[j] * norms[i].x, at(c.gains, j), at(c.shifts, j));
        } else {
          v[j] = fmaf(v[j], norms[i].x, norms[i].y);
        }
      }
      const uint2 narrow = {quantise4(v[0], v[1], v[2], v[3]), quantise4(v[4], v[5], v[6], v[7])};
      const int unit = lane_ % 16 / 2 ^ (row & 7);
      unsigned char* place = tokens(piece * 2 + lane_ / 16) + row * 128 + unit * 16 + lane_ % 2 * 8;
      *reinterpret_cast<uint2*>(place) = narrow;
    }
  }

  // Two steps of K a piece, one a warpgroup; while the tensor cores have them the next piece is made.
  __device__ __forceinline__ void multiply(const Rows& x, Condition& condition, float factor) const {
    if constexpr (S::kConditioned) factor = 1.0f;  // condition has it
    static_assert(S::kGroups == 2, "a step of a piece a warpgroup");
    float2 norms[S::kWarpTokens];
#pragma unroll
    for (int i = 0; i < S::kWarpTokens; ++i) {
      const float2 m = moments(min(token(i), in_.tokens - 1), factor);
      norms[i] = {m.y, S::kConditioned ? 0.0f : -m.x * m.y};
    }
    float sums[S::kRows / 2];
#pragma unroll
    for (int piece = 0; piece < S::kPieces; ++piece) {
      leave(x, piece, norms, condition);
      publish_shared();
      __syncthreads();  // the piece
      if (piece == 0) pdl_trigger();  // x has come: what the next kernel fetches ahead would be in its way
      const int step = piece * 2 + group_;
      barrier_wait(full(step), 0);
      this->multiply_step(step, sums, piece > 0);
      if (S::kConditioned && piece + 1 < S::kPieces) load(condition, piece + 1);
    }
    wgmma_wait<0>();
    __syncthreads();  // nobody reads what lies where the sums go
    this->leave_partials(sums);
  }
};

#endif  // FLASHRT_SM90A

}  // namespace flashrt
