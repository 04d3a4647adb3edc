// Frames [V, T, H, W, C], channels last, on their way through a streaming encoder.
//
// mean_frames:   out += means of what falls together where time or space is halved: of the numbers
//                [C, st, ss, ss] of a group of cells the O runs of n = C st ss ss / O neighbours; an odd
//                first frame is paired with zeros in front of it. bf16, float32 sums, one rounding; grid
//                (ceil(W' O / 256), H', V T')
// frame_patches: out[t, i, j] = the four cells (2 i + y, 2 j + x) of a frame [H, W, C], channels last;
//                float32 or bf16 in, float32 out on a grid of tokens; grid (ceil(2 W C / 256), H / 2, T)
// copy_runs:     out[i] = src[i] for rows of any width, as bf16; grid (ceil(width / 2048), rows)
// bound: memory
#include <cstdint>

#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(256)
    mean_frames_bf16(const bf16* x, bf16* out, int frames, int height, int width, int channels, int made,
                     int out_height, int out_width, int out_channels, int halves_time,
                     int halves_space) {
  pdl_trigger();
  pdl_wait();
  const int item = blockIdx.x * 256 + threadIdx.x;
  if (item >= out_width * out_channels) return;
  const int channel = item % out_channels, column = item / out_channels, row = blockIdx.y;
  const int frame = blockIdx.z % made, video = blockIdx.z / made;
  const int st = halves_time ? 2 : 1, ss = halves_space ? 2 : 1, cell = st * ss * ss;
  const int run = channels * cell / out_channels;
  const int lead = halves_time ? frames % 2 : 0;  // frames of zeros in front
  float sum = 0.0f;
  for (int i = channel * run; i < (channel + 1) * run; ++i) {
    const int c = i / cell, a = i % cell / (ss * ss), b = i / ss % ss, d = i % ss;
    const int t = frame * st + a - lead;
    if (t < 0) continue;
    const size_t at = (static_cast<size_t>(video * frames + t) * height + row * ss + b) * width +
                      column * ss + d;
    sum += __bfloat162float(x[at * channels + c]);
  }
  bf16* target = out + ((static_cast<size_t>(blockIdx.z) * out_height + row) * out_width + column) *
                           out_channels + channel;
  *target = __float2bfloat16_rn(__bfloat162float(*target) + sum / run);
}

namespace flashrt {

__device__ __forceinline__ float as_float(float v) { return v; }
__device__ __forceinline__ float as_float(bf16 v) { return __bfloat162float(v); }

template <class T>
__device__ __forceinline__ void frame_patches(const T* frames, float* out, int height, int width,
                                              int channels, int frame_stride, int row_stride,
                                              int token_stride) {
  pdl_trigger();
  pdl_wait();
  const int item = blockIdx.x * 256 + threadIdx.x;  // of a token's row: token, y, x, channel
  if (item >= 2 * width * channels) return;
  const int token = item / (4 * channels), within = item % (4 * channels);
  const int y = within / (2 * channels), x = within / channels % 2, c = within % channels;
  const size_t row = static_cast<size_t>(blockIdx.z) * height + blockIdx.y * 2 + y;
  out[static_cast<size_t>(blockIdx.z) * frame_stride + static_cast<size_t>(blockIdx.y) * row_stride +
      static_cast<size_t>(token) * token_stride + within] =
      as_float(frames[(row * width + token * 2 + x) * channels + c]);
}

template <class T>
__device__ __forceinline__ void copy_runs(const T* src, bf16* out, int width, long long src_stride,
                                          long long out_stride) {
  pdl_trigger();
  pdl_wait();
  const int column = (blockIdx.x * 256 + threadIdx.x) * 8;
  if (column >= width) return;
  float v[8];
  load8(src + blockIdx.y * src_stride + column, v);
  store8(out + blockIdx.y * out_stride + column, v);
}

}  // namespace flashrt

extern "C" __global__ void __launch_bounds__(256)
    frame_patches_f32(const float* frames, float* out, int height, int width, int channels,
                      int frame_stride, int row_stride, int token_stride) {
  frame_patches(frames, out, height, width, channels, frame_stride, row_stride, token_stride);
}

extern "C" __global__ void __launch_bounds__(256)
    frame_patches_bf16(const bf16* frames, float* out, int height, int width, int channels,
                       int frame_stride, int row_stride, int token_stride) {
  frame_patches(frames, out, height, width, channels, frame_stride, row_stride, token_stride);
}

extern "C" __global__ void __launch_bounds__(256)
    copy_runs_bf16(const bf16* src, bf16* out, int width, int src_stride, int out_stride) {
  copy_runs(src, out, width, src_stride, out_stride);
}

extern "C" __global__ void __launch_bounds__(256)
    copy_runs_f32_bf16(const float* src, bf16* out, int width, int src_stride, int out_stride) {
  copy_runs(src, out, width, src_stride, out_stride);
}
