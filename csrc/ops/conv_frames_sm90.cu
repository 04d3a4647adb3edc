// conv_frames_*_sm90: as conv_frames (conv_frames.cu), by warpgroups (wgmma, sm_90a)
// needs C % 8 == 0, O % 8 == 0; grid (ceil(M / 128), ceil(O / 160), splits), 256 threads
// bound: 2 M O K flop
//
// A block has 128 cells and 160 channels, a warpgroup 64 of the cells. Threads gather 64 of the K numbers at
// a time by copies of 16 bytes, into three stages whose rows of 128 bytes lie as the products take them, so
// that two blocks share a multiprocessor.
#include "../common/cluster.cuh"
#include "../common/frame_cells.cuh"
#include "../common/wgmma.cuh"

#ifdef FLASHRT_SM90A

namespace flashrt {
namespace conv {

class WideProduct {
  static constexpr int kStep = 64, kRing = 3;  // numbers of K, and stages
  static constexpr int kPieces = kStep / 8, kTurn = kThreads / kPieces;
  static constexpr int kOwn = kCells / kTurn, kOwnRows = kChannels / kTurn;
  static constexpr int kChannelsAt = kCells * 128, kStage = kChannelsAt + kChannels * 128;  // bytes
  static_assert(kRing * kStage == 110592 && kStage % 1024 == 0, "as the launcher has it");

 public:
  __device__ __forceinline__ WideProduct(const Args& args) : args_(args) {
    shared_ = shared_address(dynamic_shared());
    piece_ = threadIdx.x % kPieces;
    row_ = threadIdx.x / kPieces;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) places_[i].find(args, blockIdx.x * kCells + row_ + i * kTurn);
  }

  __device__ __forceinline__ static int steps(int depth) { return (depth + kStep - 1) / kStep; }

  // Steps [first, last) of kStep.
  __device__ __forceinline__ void run(int first, int last) {
    k_ = first * kStep + piece_ * 8;
    const int taps = k_ / args_.channels, flat = args_.k * args_.k;
    tap_ = {taps / flat, taps / args_.k % args_.k, taps % args_.k, k_ % args_.channels};
    const int count = last - first;
#pragma unroll
    for (int i = 0; i < kRing - 1; ++i) fetch(i, i < count);
    const uint32_t group = threadIdx.x / 128 * 64 * 128;  // this warpgroup's cells
    int stage = 0;
#pragma unroll 1
    for (int step = 0; step < count; ++step) {
      copy_wait<kRing - 2>();
      publish_shared();
      wgmma_wait<0>();
      __syncthreads();  // this stage is there, the one before has been used
      const uint32_t at = shared_ + stage * kStage;
      const uint64_t cells = wgmma_tile(at + group), channels = wgmma_tile(at + kChannelsAt);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kStep / 16; ++k) {
        Wgmma<kChannels>::run(sums_, wgmma_step(cells, k), wgmma_step(channels, k), 1);
      }
      wgmma_commit();
      fetch(stage == 0 ? kRing - 1 : stage - 1, step + kRing - 1 < count);
      stage = stage == kRing - 1 ? 0 : stage + 1;
    }
    wgmma_wait<0>();
    copy_wait<0>();
  }

  // Two neighbouring sums of a cell at a time: take(cell, channel, low, high).
  template <class Take>
  __device__ __forceinline__ void give(Take take) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int cell = blockIdx.x * kCells + threadIdx.x / 32 * 16 + half * 8 + lane / 4;
      if (cell >= args_.cells) continue;
#pragma unroll
      for (int n = 0; n < kChannels / 8; ++n) {
        const int channel = blockIdx.y * kChannels + n * 8 + lane % 4 * 2;
        if (channel < args_.out_channels) {
          take(cell, channel, sums_[4 * n + 2 * half], sums_[4 * n + 2 * half + 1]);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ const bf16* cell(int i, bool& keep) const {
    const Place& from = places_[i];
    const int frame = from.frame + tap_.time, row = from.line + tap_.row, column = from.column + tap_.column;
    keep = from.frame >= 0 && k_ < args_.depth && row >= 0 && row < args_.height && column >= 0 &&
           column < args_.width;
    if (!keep) return args_.weight;  // any address
    const bool old = frame < args_.past_frames;
    const int count = old ? args_.past_frames : args_.frames;
    const int at = old ? frame : frame - args_.past_frames;
    const int place = ((from.video * count + at) * args_.height + row) * args_.width + column;
    return (old ? args_.past : args_.x) + static_cast<size_t>(place) * args_.channels + tap_.channel;
  }

  // A stage of x and of W, as one group of copies; an empty group unless `wanted`.
  __device__ __forceinline__ void fetch(int stage, bool wanted) {
    if (wanted) {
      const uint32_t unit = (piece_ ^ row_ % 8) * 16;  // row_ + 32 i has the same place among eight
      uint32_t to = shared_ + stage * kStage + row_ * 128 + unit;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        bool keep;
        const bf16* from = cell(i, keep);
        copy16_async(to + i * kTurn * 128, from, keep);
      }
      to += kChannelsAt;
      const int first = blockIdx.y * kChannels + row_;
      const bf16* weight = args_.weight + static_cast<size_t>(first) * args_.depth + k_;
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const bool keep = first + i * kTurn < args_.out_channels && k_ < args_.depth;
        copy16_async(to + i * kTurn * 128,
                     keep ? weight + static_cast<size_t>(i * kTurn) * args_.depth : args_.weight, keep);
      }
      k_ += kStep;
      tap_.advance(args_, kStep);
    }
    copy_commit();
  }

  const Args args_;
  uint32_t shared_;
  int piece_, row_, k_;
  Place places_[kOwn];
  Tap tap_;
  float sums_[kChannels / 2] = {};
};

template <class Out>
__device__ __forceinline__ void convolve_wide(const Args& args, const float* bias, const bf16* residual,
                                              Out* out, float* sums) {
  pdl_trigger();
  pdl_wait();
  WideProduct product(args);
  const int steps = WideProduct::steps(args.depth);
  const int each = (steps + gridDim.z - 1) / gridDim.z, first = blockIdx.z * each;
  product.run(min(first, steps), min(first + each, steps));
  product.give([&](int cell, int channel, float low, float high) {
    const size_t at = static_cast<size_t>(cell) * args.out_channels + channel;
    if (sums) {
      store(sums + static_cast<size_t>(blockIdx.z) * args.cells * args.out_channels + at, low, high);
      return;
    }
    const float2 v = ended(low, high, bias + channel, residual, at);
    store(out + at, v.x, v.y);
  });
}

}  // namespace conv
}  // namespace flashrt

#define FLASHRT_CONV_FRAMES_WIDE(name, Out)                                                        \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const flashrt::bf16* past, const flashrt::bf16* weight,         \
           const float* bias, const flashrt::bf16* residual, Out* out, float* sums, int frames,    \
           int past_frames, int height, int width, int channels, int made, int out_height,         \
           int out_width, int out_channels, int kt, int k, int stride_time, int stride_space,      \
           int before, int cells, int depth) {                                                     \
    flashrt::conv::convolve_wide(                                                                  \
        {x, past, weight, frames, past_frames, height, width, channels, made, out_height,          \
         out_width, out_channels, kt, k, stride_time, stride_space, before, cells, depth},         \
        bias, residual, out, sums);                                                                \
  }

FLASHRT_CONV_FRAMES_WIDE(conv_frames_bf16_sm90, flashrt::bf16)
#endif
