// What a prompt needs besides products: embedding rows, rotary rows, row copies, a count. Each runs
// once a prompt or once a decision over a few hundred rows.
//
// embed_rows:   out[i] = table[tokens[i]] * scale for i < length[0], else 0; table, out bf16
// copy_rows:    out[i] = src[i]; bf16, or bf16 or float32 into a float32 residual stream, or either of
//               them narrower: as bf16, or as E4M3 with a scale
// rope_rows:    out[j] = [cos a_0 .. cos a_{d/2-1}, sin a_0 ..], a_i = (first[0] + j) theta^(-2i/d);
//               angles in float64, rounded once to float32; with rounded != 0 the frequencies
//               theta^(-2i/d) go through float32 and bf16 first
// offset_count: out[0] = count[0] + offset
// rows of bf16 are 16-byte aligned and a multiple of 8 wide; one block a row
#include <cstdint>

#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(256)
    embed_rows_bf16(const int* tokens, const int* length, const bf16* table, bf16* out, int width,
                    int table_stride, int out_stride, float scale) {
  pdl_trigger();
  pdl_wait();
  const int row = blockIdx.x;
  const bool used = row < *length;
  const bf16* source = used ? table + static_cast<size_t>(tokens[row]) * table_stride : table;
  for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
    float v[8] = {};
    if (used) load8(source + column, v);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= scale;
    store8(out + static_cast<size_t>(row) * out_stride + column, v);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_rows_bf16(const bf16* src, bf16* out, int width, int src_stride, int out_stride) {
  pdl_trigger();
  pdl_wait();
  const size_t row = blockIdx.x;
  for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
    *reinterpret_cast<uint4*>(out + row * out_stride + column) =
        *reinterpret_cast<const uint4*>(src + row * src_stride + column);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_rows_bf16_f32(const bf16* src, float* out, int width, int src_stride, int out_stride) {
  pdl_trigger();
  pdl_wait();
  const size_t row = blockIdx.x;
  for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
    float v[8];
    load8(src + row * src_stride + column, v);
    store8(out + row * out_stride + column, v);
  }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_rows_f32_f32(const float* src, float* out, int width, int src_stride, int out_stride) {
  pdl_trigger();
  pdl_wait();
  const size_t row = blockIdx.x;
  for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
    float v[8];
    load8(src + row * src_stride + column, v);
    store8(out + row * out_stride + column, v);
  }
}

template <class In, class Out>
__device__ __forceinline__ void narrow_rows(const In* src, Out* out, const float* out_scale, int width,
                                            int src_stride, int out_stride) {
  pdl_trigger();
  const float factor = store_factor<Out>(out_scale);
  pdl_wait();
  const size_t row = blockIdx.x;
  for (int column = threadIdx.x * 8; column < width; column += blockDim.x * 8) {
    float v[8];
    load8(src + row * src_stride + column, v);
    store8(out + row * out_stride + column, v, factor);
  }
}

#define FLASHRT_NARROW_ROWS(name, In, Out)                                                         \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      name(const In* src, Out* out, const float* out_scale, int width, int src_stride,             \
           int out_stride) {                                                                       \
    narrow_rows(src, out, out_scale, width, src_stride, out_stride);                               \
  }

FLASHRT_NARROW_ROWS(copy_rows_f32_bf16, float, bf16)
FLASHRT_NARROW_ROWS(copy_rows_f32_fp8, float, e4m3)
FLASHRT_NARROW_ROWS(copy_rows_bf16_fp8, bf16, e4m3)

extern "C" __global__ void __launch_bounds__(256)
    rope_rows_f32(const int* first, float* out, int width, int out_stride, double theta,
                  int rounded) {
  pdl_trigger();
  pdl_wait();
  const int half = width / 2;
  const double position = static_cast<double>(*first) + blockIdx.x;
  float* row = out + static_cast<size_t>(blockIdx.x) * out_stride;
  for (int i = threadIdx.x; i < half; i += blockDim.x) {
    double frequency = pow(theta, -2.0 * i / width);
    if (rounded) frequency = __bfloat162float(__float2bfloat16_rn(static_cast<float>(frequency)));
    const double angle = position * frequency;
    row[i] = static_cast<float>(cos(angle));
    row[half + i] = static_cast<float>(sin(angle));
  }
}

extern "C" __global__ void offset_count_i32(const int* count, int* out, int offset) {
  pdl_trigger();
  pdl_wait();
  *out = *count + offset;
}
