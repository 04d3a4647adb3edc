// conv_frames: out = past|x * W + b (+ residual), a correlation over [frames, rows, columns], causal in
// time; channels last
// x [V, T, H, W, C], past [V, P, H, W, C] or null, W [O, kt, k, k, C] bf16; b [O] float32; out, residual
// [V, T', H', W', O] bf16, or out float32; all without gaps; residual may be out
// float32 sums and epilogue, one rounding; with several splits of K sums of float32 go to `sums`
// [splits, M, O], M = V T' H' W', and conv_sums adds them up in order
// needs C % 8 == 0 (or 4, in the entries named _narrow), O % 8 == 0; grid (ceil(M / 128), ceil(O / 160),
// splits), 256 threads
// bound: 2 M O K flop on mma.sync, K = kt k k C
//
// A product of M cells and O channels whose rows of x are gathered, 32 of the K numbers at a time: a copy
// takes neighbours of one cell, or zeros outside of the picture. Eight warps have 32 cells by 80 channels
// each; four stages of 32 are in shared memory.
#include "../common/frame_cells.cuh"
#include "../common/mma.cuh"

namespace flashrt {
namespace conv {

constexpr int kDepth = 32, kStages = 4;
constexpr int kPitch = kDepth + 8;  // elements; eight rows of an ldmatrix lie in different banks
constexpr int kTile = (kCells + kChannels) * kPitch;
constexpr int kSharedBytes = kStages * kTile * 2;
static_assert(kSharedBytes == 92160, "as the launcher has it");
static_assert(kPitch / 8 % 2 == 1, "no bank conflicts");

// kVector numbers a copy.
template <int kVector>
class Product {
  static constexpr int kPieces = kDepth / kVector, kStep = kThreads / kPieces;
  static constexpr int kOwn = kCells / kStep;  // cells that this thread copies a piece of
  static constexpr int kOwnRows = (kChannels + kStep - 1) / kStep;

 public:
  __device__ __forceinline__ Product(const Args& args) : args_(args) {
    shared_ = reinterpret_cast<bf16*>(dynamic_shared());
    lane_ = threadIdx.x % 32;
    warp_ = threadIdx.x / 32;
    piece_ = threadIdx.x % kPieces * kVector;
    row_ = threadIdx.x / kPieces;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) places_[i].find(args, blockIdx.x * kCells + row_ + i * kStep);
  }

  // Steps [first, last) of kDepth.
  __device__ __forceinline__ void run(int first, int last) {
    k_ = first * kDepth + piece_;
    const int taps = k_ / args_.channels, flat = args_.k * args_.k;
    tap_ = {taps / flat, taps / args_.k % args_.k, taps % args_.k, k_ % args_.channels};
    const int steps = last - first;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch(i, i < steps);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      copy_wait<kStages - 2>();
      __syncthreads();
      fetch(step + kStages - 1, step + kStages - 1 < steps);
      multiply(shared_ + step % kStages * kTile);
    }
    copy_wait<0>();
  }

  // Two neighbouring sums of a cell at a time: take(cell, channel, low, high).
  template <class Take>
  __device__ __forceinline__ void give(Take take) const {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int cell = blockIdx.x * kCells + warp_ / 2 * 32 + m * 16 + half * 8 + lane_ / 4;
        if (cell >= args_.cells) continue;
#pragma unroll
        for (int n = 0; n < 10; ++n) {
          const int channel = blockIdx.y * kChannels + warp_ % 2 * 80 + n * 8 + lane_ % 4 * 2;
          if (channel < args_.out_channels) {
            take(cell, channel, sums_[m][n][2 * half], sums_[m][n][2 * half + 1]);
          }
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static void copy(bf16* shared, const bf16* global, bool keep) {
    if constexpr (kVector == 8) {
      copy16_async(shared_address(shared), global, keep);
    } else {
      copy_async<8>(shared_address(shared), global, keep);
    }
  }

  __device__ __forceinline__ const bf16* cell(int i, bool& keep) const {
    const Place& from = places_[i];
    const int frame = from.frame + tap_.time, row = from.line + tap_.row, column = from.column + tap_.column;
    keep = from.frame >= 0 && k_ < args_.depth && row >= 0 && row < args_.height && column >= 0 &&
           column < args_.width;
    if (!keep) return args_.weight;  // any address
    const bool old = frame < args_.past_frames;
    const int count = old ? args_.past_frames : args_.frames;
    const int at = old ? frame : frame - args_.past_frames;
    const size_t place =
        (static_cast<size_t>(from.video * count + at) * args_.height + row) * args_.width + column;
    return (old ? args_.past : args_.x) + place * args_.channels + tap_.channel;
  }

  // A stage of x and of W, as one group of copies; an empty group unless `wanted`.
  __device__ __forceinline__ void fetch(int step, bool wanted) {
    if (wanted) {
      bf16* cells = shared_ + step % kStages * kTile;
      bf16* channels = cells + kCells * kPitch;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        bool keep;
        const bf16* from = cell(i, keep);
        copy(cells + (row_ + i * kStep) * kPitch + piece_, from, keep);
      }
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
        const int row = row_ + i * kStep, channel = blockIdx.y * kChannels + row;
        if (row >= kChannels) break;
        const bool keep = channel < args_.out_channels && k_ < args_.depth;
        const bf16* from = args_.weight + (keep ? static_cast<size_t>(channel) * args_.depth + k_ : 0);
        copy(channels + row * kPitch + piece_, from, keep);
      }
      k_ += kDepth;
      tap_.advance(args_, kDepth);
    }
    copy_commit();
  }

  __device__ __forceinline__ void multiply(const bf16* stage) {
    const bf16* cells = stage + (warp_ / 2 * 32 + lane_ % 16) * kPitch + lane_ / 16 * 8;
    const bf16* channels = stage + (kCells + warp_ % 2 * 80 + lane_ / 16 * 8 + lane_ % 8) * kPitch +
                           lane_ / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) ldmatrix_x4(a[m], shared_address(cells + m * 16 * kPitch + k));
#pragma unroll
      for (int n = 0; n < 10; n += 2) {
        uint32_t b[4];
        ldmatrix_x4(b, shared_address(channels + n * 8 * kPitch + k));
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          mma_k16(sums_[m][n], a[m], b[0], b[1]);
          mma_k16(sums_[m][n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  const Args args_;
  bf16* shared_;
  int lane_, warp_, piece_, row_, k_;
  Place places_[kOwn];
  Tap tap_;
  float sums_[2][10][4] = {};
};

template <int kVector, class Out>
__device__ __forceinline__ void convolve(const Args& args, const float* bias, const bf16* residual,
                                         Out* out, float* sums) {
  pdl_trigger();
  pdl_wait();
  Product<kVector> product(args);
  const int steps = (args.depth + kDepth - 1) / kDepth;
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

template <class Out>
__device__ __forceinline__ void add_splits(const float* sums, const float* bias, const bf16* residual,
                                           Out* out, int count, int channels, int splits) {
  pdl_trigger();
  pdl_wait();
  const int at = (blockIdx.x * kThreads + threadIdx.x) * 2;
  if (at >= count) return;
  float2 sum = {0.0f, 0.0f};
  for (int split = 0; split < splits; ++split) {
    const float2 v = load_fresh2(sums + static_cast<size_t>(split) * count + at);
    sum = {sum.x + v.x, sum.y + v.y};
  }
  const float2 v = ended(sum.x, sum.y, bias + at % channels, residual, at);
  store(out + at, v.x, v.y);
}

}  // namespace conv
}  // namespace flashrt

#define FLASHRT_CONV_FRAMES(name, kVector, Out)                                                    \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const flashrt::bf16* x, const flashrt::bf16* past, const flashrt::bf16* weight,         \
           const float* bias, const flashrt::bf16* residual, Out* out, float* sums, int frames,    \
           int past_frames, int height, int width, int channels, int made, int out_height,         \
           int out_width, int out_channels, int kt, int k, int stride_time, int stride_space,      \
           int before, int cells, int depth) {                                                     \
    flashrt::conv::convolve<kVector>(                                                              \
        {x, past, weight, frames, past_frames, height, width, channels, made, out_height,          \
         out_width, out_channels, kt, k, stride_time, stride_space, before, cells, depth},         \
        bias, residual, out, sums);                                                                \
  }

FLASHRT_CONV_FRAMES(conv_frames_bf16, 8, flashrt::bf16)
FLASHRT_CONV_FRAMES(conv_frames_f32, 8, float)
FLASHRT_CONV_FRAMES(conv_frames_narrow_bf16, 4, flashrt::bf16)
FLASHRT_CONV_FRAMES(conv_frames_narrow_f32, 4, float)

// Adds partial sums [splits, M, O] up: a thread has two neighbours; grid ceil(M O / 512), 256 threads.
#define FLASHRT_CONV_SUMS(name, Out)                                                               \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const float* sums, const float* bias, const flashrt::bf16* residual, Out* out,          \
           int count, int channels, int splits) {                                                  \
    flashrt::conv::add_splits(sums, bias, residual, out, count, channels, splits);                 \
  }

FLASHRT_CONV_SUMS(conv_sums_bf16, flashrt::bf16)
FLASHRT_CONV_SUMS(conv_sums_f32, float)
