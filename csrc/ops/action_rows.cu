// The two ends of a denoising step: rows of A numbers in, rows of A numbers out, float32 weights.
//
// action_in:        out = x W^T + b; x [H, A] float32, W [D, A], b [D] float32, out [H, D] bf16
// action_out_euler: out = x + dt (n W^T + b), n = hidden / sqrt(mean(hidden^2) + eps) (1 + scale)
//                   + shift; hidden [H, D] bf16, W [A, D], x, out [H, A] float32; out may be x
//                   guided: common/guide.cuh
// float32 throughout; needs D % 8 == 0 and D <= 8192, 16-byte aligned rows
// action_in: grid (ceil(D / 256), H), 256 threads; action_out_euler: one block a row, D / 8 threads
#include "../common/guide.cuh"
#include "../common/pdl.cuh"
#include "../common/reduce.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(256)
    action_in_rows_bf16(const float* x, const float* weight, const float* bias, bf16* out, int width,
                        int depth, int x_stride, int out_stride) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  pdl_wait();
  pdl_trigger();  // after the wait: see attention_few_queries
  if (column >= width) return;
  const float* row = x + static_cast<size_t>(blockIdx.y) * x_stride;
  float sum = bias[column];
  for (int i = 0; i < depth; ++i) sum += row[i] * weight[static_cast<size_t>(column) * depth + i];
  out[static_cast<size_t>(blockIdx.y) * out_stride + column] = __float2bfloat16_rn(sum);
}

template <bool kGuided>
__device__ __forceinline__ void action_out_euler_rows(const bf16* hidden, const float* scale,
                                                      const float* shift, const float* weight,
                                                      const float* bias, const float* x, float* out,
                                                      int width, int actions, int hidden_stride,
                                                      int x_stride, int out_stride, float dt, float eps,
                                                      const Guide& guide) {
  __shared__ float slots[2][32];
  pdl_trigger();
  const int column = threadIdx.x * 8;
  const bool inside = column < width;
  pdl_wait();
  float v[8] = {}, gain[8], offset[8];
  if (inside) load8(hidden + static_cast<size_t>(blockIdx.x) * hidden_stride + column, v);
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += v[i] * v[i];
  const float inverse = rsqrtf(block_sum(squares, slots[1]) / width + eps);
  if (inside) {
    load8(scale + column, gain);
    load8(shift + column, offset);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] * inverse * (1.0f + gain[i]) + offset[i];
  }
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int action = 0; action < actions; ++action) {
    float w[8], sum = 0.0f;
    if (inside) {
      load8(weight + static_cast<size_t>(action) * width + column, w);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += v[i] * w[i];
    }
    sum = warp_sum(sum);
    __syncthreads();  // the slots of the action before may still be read
    if (lane == 0) slots[0][warp] = sum;
    __syncthreads();
    if (warp == 0) {
      const float total = warp_sum(lane < warps ? slots[0][lane] : 0.0f);
      if (lane == 0) {
        const size_t row = blockIdx.x;
        const float here = x[row * x_stride + action], velocity = total + bias[action];
        if constexpr (kGuided) {
          out[row * out_stride + action] = guided_step(guide, row, action, here, velocity, dt);
        } else {
          out[row * out_stride + action] = here + dt * velocity;
        }
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(1024)
    action_out_euler_rows_bf16(const bf16* hidden, const float* scale, const float* shift,
                               const float* weight, const float* bias, const float* x, float* out,
                               int width, int actions, int hidden_stride, int x_stride,
                               int out_stride, float dt, float eps) {
  action_out_euler_rows<false>(hidden, scale, shift, weight, bias, x, out, width, actions, hidden_stride,
                               x_stride, out_stride, dt, eps, {});
}

extern "C" __global__ void __launch_bounds__(1024)
    action_out_euler_guided_rows_bf16(const bf16* hidden, const float* scale, const float* shift,
                                      const float* weight, const float* bias, const float* x, float* out,
                                      int width, int actions, int hidden_stride, int x_stride,
                                      int out_stride, float dt, float eps, const float* previous,
                                      const float* guidance, int previous_stride, int guidance_stride,
                                      float time, float share) {
  action_out_euler_rows<true>(hidden, scale, shift, weight, bias, x, out, width, actions, hidden_stride,
                              x_stride, out_stride, dt, eps,
                              {previous, guidance, previous_stride, guidance_stride, time, share});
}
