// The two ends of a denoising step: rows of A numbers in, rows of A numbers out, float32 weights.
//
// action_in:        out = x W^T + b; x [H, A] float32, W [D, A], b [D] float32, out [H, D] bf16
// action_out_euler: out = x + dt (n W^T + b), n = hidden / sqrt(mean(hidden^2) + eps) (1 + scale)
//                   + shift; hidden [H, D] bf16, W [A, D], x, out [H, A] float32; out may be x
//                   guided: common/guide.cuh
// float32 throughout; needs D % 8 == 0 and D <= 8192, 16-byte aligned rows
// action_in: grid (ceil(D / 256), H), 256 threads; action_out_euler: one block a row, D / 8 threads
#include "../common/activation.cuh"
#include "../common/guide.cuh"
#include "../common/mma.cuh"
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

namespace flashrt {

// Sixteen columns a block and up to 48 rows, three of them a thread.
constexpr int kInColumns = 16, kInRows = 48;

__device__ __forceinline__ float dot(float4 a, float4 b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Rows of `depth` floats into shared memory, `pitch` groups of four apart.
__device__ __forceinline__ void fetch_rows(float4* shared, const float* global, int rows, int depth,
                                           int stride, int pitch) {
  const int groups = depth / 4;
  for (int i = threadIdx.x; i < rows * groups; i += blockDim.x) {
    const int row = i / groups, group = i % groups;
    copy16_async(shared_address(shared + row * pitch + group),
                 global + static_cast<size_t>(row) * stride + group * 4);
  }
  copy_commit();
}

}  // namespace flashrt

// action_in with an activation, for rows of any width: x and weights in shared memory, whose rows are an
// odd number of 16 bytes apart; needs A % 4 == 0, D % 16 == 0; grid (D / 16, ceil(H / 48)), 256 threads,
// shared memory for 64 rows
extern "C" __global__ void __launch_bounds__(256)
    action_in_activated_bf16(const float* x, const float* weight, const float* bias, bf16* out, int rows,
                             int depth, int x_stride, int out_stride, int activation) {
  extern __shared__ float4 action_memory[];
  const int column = threadIdx.x % kInColumns, first = threadIdx.x / kInColumns;
  const int pitch = depth / 4 | 1, start = blockIdx.y * kInRows, count = min(kInRows, rows - start);
  float4* inputs = action_memory + kInColumns * pitch;
  fetch_rows(action_memory, weight + static_cast<size_t>(blockIdx.x) * kInColumns * depth, kInColumns,
             depth, depth, pitch);
  const float offset = bias[blockIdx.x * kInColumns + column];
  pdl_wait();
  pdl_trigger();  // after the wait: see attention_few_queries
  fetch_rows(inputs, x + static_cast<size_t>(start) * x_stride, count, depth, x_stride, pitch);
  copy_wait<0>();
  __syncthreads();
  float sums[kInRows / 16] = {offset, offset, offset};
  for (int i = 0; i < depth / 4; ++i) {
    const float4 w = action_memory[column * pitch + i];
#pragma unroll
    for (int j = 0; j < kInRows / 16; ++j) {
      if (first + 16 * j < count) sums[j] = dot(w, inputs[(first + 16 * j) * pitch + i], sums[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kInRows / 16; ++j) {
    const size_t row = start + first + 16 * j;
    if (first + 16 * j >= count) break;
    out[row * out_stride + blockIdx.x * kInColumns + column] =
        __float2bfloat16_rn(activate(activation, sums[j]));
  }
}

namespace flashrt {

// action_out_euler without a norm: n = hidden. A block has eight rows, a warp each, and four outputs,
// whose weights are in shared memory before the rows are there; needs D % 8 == 0 and D <= 3072; grid
// (ceil(A / 4), ceil(H / 8)), 256 threads, 16 D bytes of shared memory
constexpr int kOutRows = 8, kOutColumns = 4;

template <bool kGuided>
__device__ __forceinline__ void action_out_euler_plain(const bf16* hidden, const float* weight,
                                                       const float* bias, const float* x, float* out,
                                                       int rows, int width, int actions, int hidden_stride,
                                                       int x_stride, int out_stride, float dt,
                                                       const Guide& guide) {
  extern __shared__ float4 action_memory[];
  pdl_trigger();
  const int lane = threadIdx.x % 32, row = blockIdx.y * kOutRows + threadIdx.x / 32;
  const int first = blockIdx.x * kOutColumns, count = min(kOutColumns, actions - first);
  fetch_rows(action_memory, weight + static_cast<size_t>(first) * width, count, width, width, width / 4);
  const float offset = lane < count ? bias[first + lane] : 0.0f;
  pdl_wait();
  copy_wait<0>();
  __syncthreads();
  if (row >= rows) return;
  float sums[kOutColumns] = {};
  for (int column = lane * 8; column < width; column += 256) {
    float v[8];
    load8(hidden + static_cast<size_t>(row) * hidden_stride + column, v);
#pragma unroll
    for (int i = 0; i < kOutColumns; ++i) {
      if (i >= count) break;
      const float4* w = action_memory + i * (width / 4) + column / 4;
      sums[i] = dot(w[0], {v[0], v[1], v[2], v[3]}, sums[i]);
      sums[i] = dot(w[1], {v[4], v[5], v[6], v[7]}, sums[i]);
    }
  }
  float velocity = 0.0f;
#pragma unroll
  for (int i = 0; i < kOutColumns; ++i) {
    const float sum = warp_sum(sums[i]);
    if (lane == i) velocity = sum + offset;
  }
  if (lane >= count) return;
  const float here = x[static_cast<size_t>(row) * x_stride + first + lane];
  float* target = out + static_cast<size_t>(row) * out_stride + first + lane;
  if constexpr (kGuided) {
    *target = guided_step(guide, row, first + lane, here, velocity, dt);
  } else {
    *target = here + dt * velocity;
  }
}

}  // namespace flashrt

extern "C" __global__ void __launch_bounds__(256)
    action_out_euler_plain_bf16(const bf16* hidden, const float* weight, const float* bias, const float* x,
                                float* out, int rows, int width, int actions, int hidden_stride,
                                int x_stride, int out_stride, float dt) {
  action_out_euler_plain<false>(hidden, weight, bias, x, out, rows, width, actions, hidden_stride, x_stride,
                                out_stride, dt, {});
}

extern "C" __global__ void __launch_bounds__(256)
    action_out_euler_guided_plain_bf16(const bf16* hidden, const float* weight, const float* bias,
                                       const float* x, float* out, int rows, int width, int actions,
                                       int hidden_stride, int x_stride, int out_stride, float dt,
                                       const float* previous, const float* guidance, int previous_stride,
                                       int guidance_stride, float time, float share) {
  action_out_euler_plain<true>(hidden, weight, bias, x, out, rows, width, actions, hidden_stride, x_stride,
                               out_stride, dt,
                               {previous, guidance, previous_stride, guidance_stride, time, share});
}
