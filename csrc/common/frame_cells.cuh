// frame_cells: what products of a convolution over frames have in common, whichever way they multiply: the
// cells and channels of a block, where one of the K numbers lies, and how a sum ends (conv_frames.cu).
#pragma once

#include <cstdint>

#include "pdl.cuh"
#include "stream.cuh"
#include "vector.cuh"

namespace flashrt {
namespace conv {

constexpr int kCells = 128, kChannels = 160, kThreads = 256;

struct Args {
  const bf16 *x, *past, *weight;
  int frames, past_frames, height, width, channels;
  int made, out_height, out_width, out_channels;  // T' H' W' O
  int kt, k, stride_time, stride_space, before;
  int cells, depth;  // M, K
};

// Where a K number lies: in which tap of the kernel, and its channel.
struct Tap {
  int time, row, column, channel;

  __device__ __forceinline__ void advance(const Args& args, int by) {
    channel += by;
    while (channel >= args.channels) {
      channel -= args.channels;
      if (++column < args.k) continue;
      column = 0;
      if (++row < args.k) continue;
      row = 0;
      ++time;
    }
  }
};

// Where a cell of the output begins in the pictures before it; frame -1: there is no such cell.
struct Place {
  int frame, line, column, video;

  __device__ __forceinline__ void find(const Args& args, int cell) {
    const int at = cell % args.out_width, rest = cell / args.out_width;
    const int row = rest % args.out_height, made = rest / args.out_height % args.made;
    column = at * args.stride_space - args.before;
    line = row * args.stride_space - args.before;
    frame = cell < args.cells ? made * args.stride_time : -1;
    video = rest / args.out_height / args.made;
  }
};

__device__ __forceinline__ void store(bf16* out, float low, float high) {
  *reinterpret_cast<uint32_t*>(out) = pack2(low, high);
}
__device__ __forceinline__ void store(float* out, float low, float high) {
  *reinterpret_cast<float2*>(out) = {low, high};
}

__device__ __forceinline__ float2 ended(float low, float high, const float* bias, const bf16* residual,
                                        size_t at) {
  float2 sum = {low + bias[0], high + bias[1]};
  if (residual) {
    const float2 before = unpack2(load_fresh1(residual + at));
    sum = {sum.x + before.x, sum.y + before.y};
  }
  return sum;
}

}  // namespace conv
}  // namespace flashrt
