// What a policy that remembers needs besides products: which rows of a pool a pass takes, where its
// tokens stand, which keys count, and single steps over small buffers.
//
// take_rows:   frees rows that hold what is forgotten, gives up the oldest where too few are free, and
//              takes the first free ones; one block, exact
// grid_rope:   cosines and sines of positions on a grid that moves with start[0]; angles in float64,
//              rounded to float32 before the turn; grid M, threads over d/2 angles
// span_bias:   out[i, 0] = log(rows - n_i), 0 for 1..n_i, -inf behind; grid (ceil(P / 256), B)
// guided_step: x += dt (o + g (w - o)), x float32; w and o float32 or bf16; grid (ceil(D / 256), M)
// fill_rows:   out = a word of 2 or 4 bytes; grid (ceil(width / 1024), rows)
#include <cstdint>

#include "../common/pdl.cuh"
#include "../common/vector.cuh"

namespace flashrt {

constexpr int kTakers = 1024, kTakerWarps = kTakers / 32;

// Over the block, the same in every thread; `slots` has a word a warp.
template <class Join>
__device__ __forceinline__ int join_all(int value, int* slots, Join join) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  __syncthreads();  // nobody reads the slots any more
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  value = slots[threadIdx.x % 32];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
  return value;
}

struct Sum {
  __device__ __forceinline__ int operator()(int a, int b) const { return a + b; }
};
struct Least {
  __device__ __forceinline__ int operator()(int a, int b) const { return min(a, b); }
};
struct Most {
  __device__ __forceinline__ int operator()(int a, int b) const { return max(a, b); }
};

// How many threads in front of this one hold `flag`, and in `total` how many do at all.
__device__ __forceinline__ int rank_among(bool flag, int* slots, int& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned votes = __ballot_sync(0xffffffffu, flag);
  __syncthreads();
  if (lane == 0) slots[warp] = __popc(votes);
  __syncthreads();
  int before = 0;
  total = 0;
  for (int i = 0; i < kTakerWarps; ++i) {
    before += i < warp ? slots[i] : 0;
    total += slots[i];
  }
  return before + __popc(votes & ((1u << lane) - 1u));
}

}  // namespace flashrt

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(flashrt::kTakers)
    take_rows_i32(int* holders, int* kinds, int* rows, float* bias, int capacity, int count, int copies,
                  int kind, int forgets, int forgotten) {
  __shared__ int slots[kTakerWarps];
  pdl_trigger();
  pdl_wait();
  const int first = threadIdx.x;
  int free_rows = 0;
  for (int row = first; row < capacity; row += kTakers) {
    if (forgets && kinds[row] == forgotten) holders[row] = -1;
    free_rows += holders[row] < 0;
  }
  int lacking = max(0, count - join_all(free_rows, slots, Sum{}));
  // The pass with the smallest number is given up, row by row where not all of it is needed.
  while (lacking > 0) {
    int oldest = INT32_MAX;
    for (int row = first; row < capacity; row += kTakers) {
      if (holders[row] >= 0) oldest = min(oldest, holders[row]);
    }
    oldest = join_all(oldest, slots, Least{});
    if (oldest == INT32_MAX) break;  // nobody holds any row
    for (int start = 0; start < capacity && lacking > 0; start += kTakers) {
      const int row = start + first;
      const bool holds = row < capacity && holders[row] == oldest;
      int found;
      const int rank = rank_among(holds, slots, found);
      if (holds && rank < lacking) holders[row] = -1;
      lacking -= min(lacking, found);
    }
  }
  int newest = -1;
  for (int row = first; row < capacity; row += kTakers) newest = max(newest, holders[row]);
  newest = join_all(newest, slots, Most{});
  int taken = 0;
  for (int start = 0; start < capacity; start += kTakers) {
    const int row = start + first;
    bool is_free = row < capacity && holders[row] < 0;
    int found;
    const int place = taken + rank_among(is_free, slots, found);
    if (is_free && place < count) {
      holders[row] = newest < 0 ? 0 : newest + 1;
      kinds[row] = kind;
      for (int copy = 0; copy < copies; ++copy) rows[copy * count + place] = copy * capacity + row;
      is_free = false;
    }
    taken += found;
    if (row < capacity) {
      for (int copy = 0; copy < copies; ++copy) bias[copy * capacity + row] = is_free ? -INFINITY : 0.0f;
    }
  }
}

extern "C" __global__ void __launch_bounds__(128)
    grid_rope_f32(const int* start, const float* at, const float* rates, const int* axes, float* out,
                  int rows, int copies, int half, int out_stride) {
  pdl_trigger();
  pdl_wait();
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    const int axis = axes[i];
    float position = at[row * 3 + axis];
    if (axis == 0) position += static_cast<float>(*start);
    const double rate = static_cast<double>(rates[2 * i]) + static_cast<double>(rates[2 * i + 1]);
    const double angle = static_cast<float>(static_cast<double>(position) * rate);
    const float cosine = static_cast<float>(cos(angle)), sine = static_cast<float>(sin(angle));
    for (int copy = 0; copy < copies; ++copy) {
      float* target = out + static_cast<size_t>(copy * rows + row) * out_stride;
      target[i] = cosine;
      target[half + i] = sine;
    }
  }
}

extern "C" __global__ void __launch_bounds__(256)
    span_bias_f32(const int* lengths, float* out, int keys, int out_stride, int rows) {
  pdl_trigger();
  pdl_wait();
  const int key = blockIdx.x * 256 + threadIdx.x, length = lengths[blockIdx.y];
  if (key >= keys) return;
  float value = key <= length ? 0.0f : -INFINITY;
  if (key == 0) value = rows > length ? logf(static_cast<float>(rows - length)) : -INFINITY;
  out[static_cast<size_t>(blockIdx.y) * out_stride + key] = value;
}

namespace flashrt {

__device__ __forceinline__ float number(float v) { return v; }
__device__ __forceinline__ float number(bf16 v) { return __bfloat162float(v); }

template <class T>
__device__ __forceinline__ void lean(const T* wanted, const T* other, float* x, int width,
                                     int wanted_stride, int other_stride, int x_stride, float guidance,
                                     float dt) {
  pdl_trigger();
  pdl_wait();
  const int column = blockIdx.x * 256 + threadIdx.x;
  const size_t row = blockIdx.y;
  if (column >= width) return;
  const float w = number(wanted[row * wanted_stride + column]);
  const float o = number(other[row * other_stride + column]);
  float* target = x + row * x_stride + column;
  *target = fmaf(dt, fmaf(guidance, w - o, o), *target);
}

template <class T>
__device__ __forceinline__ void fill_rows(T* out, T value, int width, int out_stride) {
  pdl_trigger();
  pdl_wait();
  T* row = out + static_cast<size_t>(blockIdx.y) * out_stride;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int column = (blockIdx.x * 4 + i) * 256 + threadIdx.x;
    if (column < width) row[column] = value;
  }
}

}  // namespace flashrt

extern "C" __global__ void __launch_bounds__(256)
    guided_step_f32(const float* wanted, const float* other, float* x, int width, int wanted_stride,
                    int other_stride, int x_stride, float guidance, float dt) {
  lean(wanted, other, x, width, wanted_stride, other_stride, x_stride, guidance, dt);
}

extern "C" __global__ void __launch_bounds__(256)
    guided_step_bf16(const bf16* wanted, const bf16* other, float* x, int width, int wanted_stride,
                     int other_stride, int x_stride, float guidance, float dt) {
  lean(wanted, other, x, width, wanted_stride, other_stride, x_stride, guidance, dt);
}

extern "C" __global__ void __launch_bounds__(256)
    fill_rows_b32(uint32_t* out, int value, int width, int out_stride) {
  fill_rows<uint32_t>(out, static_cast<uint32_t>(value), width, out_stride);
}

extern "C" __global__ void __launch_bounds__(256)
    fill_rows_b16(uint16_t* out, int value, int width, int out_stride) {
  fill_rows<uint16_t>(out, static_cast<uint16_t>(value), width, out_stride);
}
