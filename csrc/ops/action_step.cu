// The two ends of a flow-matching step, a few rows of float32.
//
// action_in: y = x W^T + b; x [A, d], W [D, d], b [D] float32, y [A, D] bf16
//   needs d = 32, D % 128 == 0; grid (D / 128, ceil(A / 4)), 128 threads: a column and 4 rows each
// action_out_euler: out = x + dt (n W^T + b), n = h / sqrt(mean(h^2) + eps) * (1 + scale) + shift
//   h [A, D] bf16, W [d, D], scale, shift, b, x, out float32; out may be x
//   needs d = 32, D = 1024; one block of 512 threads a row, a warp takes two outputs
//   guided: common/guide.cuh; an entry of its own, as the plain one is in the chain of every decision
// rows *_stride elements apart (weights packed); no workspace; bound: the chain of dependent steps
#include "../common/guide.cuh"
#include "../common/pdl.cuh"
#include "../common/reduce.cuh"
#include "../common/stream.cuh"
#include "../common/vector.cuh"

namespace flashrt {

constexpr int kActionWidth = 32, kActionRows = 4;

__device__ __forceinline__ float dot4(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

}  // namespace flashrt

// Waits before it triggers: no kernel behind this one starts before all in front are complete, so
// those may read what earlier stages wrote (the prefix cache) before their own pdl_wait().
extern "C" __global__ void __launch_bounds__(128)
    action_in_d32_bf16(const float* x, const float* weight, const float* bias, flashrt::bf16* y, int rows,
                   int x_stride, int y_stride) {
  using namespace flashrt;
  const int column = blockIdx.x * 128 + threadIdx.x;
  float4 w[kActionWidth / 4];
#pragma unroll
  for (int i = 0; i < kActionWidth / 4; ++i) {
    w[i] = reinterpret_cast<const float4*>(weight + column * kActionWidth)[i];
  }
  const float b = bias[column];
  pdl_wait();
  pdl_trigger();
#pragma unroll
  for (int i = 0; i < kActionRows; ++i) {
    const int row = blockIdx.y * kActionRows + i;
    if (row >= rows) return;
    float sum = b;
#pragma unroll
    for (int j = 0; j < kActionWidth / 4; ++j) {
      sum = dot4(load_fresh4(x + row * x_stride + j * 4), w[j], sum);
    }
    y[static_cast<size_t>(row) * y_stride + column] = __float2bfloat16_rn(sum);
  }
}

namespace flashrt {

template <bool kGuided>
__device__ __forceinline__ void action_out_euler_d32(const bf16* h, const float* scale, const float* shift,
                                                     const float* weight, const float* bias, const float* x,
                                                     float* out, int h_stride, int x_stride, int out_stride,
                                                     float dt, float eps, const Guide& guide) {
  constexpr int kWidth = 1024, kPieces = kWidth / 128;
  __shared__ float slots[32];
  __shared__ __align__(16) float normal[kWidth];
  pdl_trigger();
  const int lane = threadIdx.x % 32, output = threadIdx.x / 32 * 2, column = threadIdx.x * 2;
  float4 w[2][kPieces];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const float* p = weight + (output + i) * kWidth + piece * 128 + lane * 4;
      w[i][piece] = *reinterpret_cast<const float4*>(p);
    }
  }
  const float2 gain = *reinterpret_cast<const float2*>(scale + column);
  const float2 offset = *reinterpret_cast<const float2*>(shift + column);
  pdl_wait();
  const size_t row = blockIdx.x;
  const float2 v = unpack2(load_fresh1(h + row * h_stride + column));
  const float r = rsqrtf(block_sum(v.x * v.x + v.y * v.y, slots) / kWidth + eps);
  normal[column] = fmaf(v.x * r, 1.0f + gain.x, offset.x);
  normal[column + 1] = fmaf(v.y * r, 1.0f + gain.y, offset.y);
  __syncthreads();
  float sum[2] = {};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    const float4 n = reinterpret_cast<const float4*>(normal + piece * 128)[lane];
    sum[0] = dot4(n, w[0][piece], sum[0]);
    sum[1] = dot4(n, w[1][piece], sum[1]);
  }
  sum[0] = warp_sum(sum[0]);
  sum[1] = warp_sum(sum[1]);
  if (lane < 2) {
    const int at = output + lane;
    const float velocity = (lane ? sum[1] : sum[0]) + bias[at];
    const float here = load_fresh(x + row * x_stride + at);
    if constexpr (kGuided) {
      out[row * out_stride + at] = guided_step(guide, row, at, here, velocity, dt);
    } else {
      out[row * out_stride + at] = here + dt * velocity;
    }
  }
}

}  // namespace flashrt

extern "C" __global__ void __launch_bounds__(512)
    action_out_euler_d32_bf16(const flashrt::bf16* h, const float* scale, const float* shift,
                          const float* weight, const float* bias, const float* x, float* out,
                          int h_stride, int x_stride, int out_stride, float dt, float eps) {
  flashrt::action_out_euler_d32<false>(h, scale, shift, weight, bias, x, out, h_stride, x_stride, out_stride,
                                       dt, eps, {});
}

extern "C" __global__ void __launch_bounds__(512)
    action_out_euler_guided_d32_bf16(const flashrt::bf16* h, const float* scale, const float* shift,
                                     const float* weight, const float* bias, const float* x, float* out,
                                     int h_stride, int x_stride, int out_stride, float dt, float eps,
                                     const float* previous, const float* guidance, int previous_stride,
                                     int guidance_stride, float time, float share) {
  flashrt::action_out_euler_d32<true>(h, scale, shift, weight, bias, x, out, h_stride, x_stride, out_stride,
                                      dt, eps,
                                      {previous, guidance, previous_stride, guidance_stride, time, share});
}
