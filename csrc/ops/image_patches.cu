// image_patches: pixel / 127.5 - 1, one row a patch, columns (channel, y, x) as in a Conv2d weight
// out [(Y/p)(X/p), 3 p p] bf16, rows out_stride elements apart; one block a patch, row-major. The entries
// named _merged put merge x merge patches next to each other, groups row-major and each one likewise.
//
// image_patches_bf16: image [Y, X, 3] uint8 contiguous
// bound: memory, Y X 3 (1 + 2) bytes
//
// image_patches_raw_bf16: image [bytes] uint8 as a camera sent it, picture [16] int32 says how to read
// it; turned, resized to fit with its aspect, padded with black. Grey levels equal Pillow's (two
// passes, weights in units of 2^-22 from doubles, a rounding to 8 bits between the passes) or torch's
// (float32, the order of its fused multiply-adds). A thread makes a pixel of the square and averages
// the source rows for itself; neighbours share about every second of them, which costs less than a
// buffer whose size would depend on the camera's.
// bound: latency of loads from L2; 1280 x 720 rgb8 reads each byte about twice
#include <cstdint>

#include "../common/pdl.cuh"
#include "../common/picture.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

constexpr int kMaxTaps = 64;

__device__ __forceinline__ bf16 unit(float value) { return __float2bfloat16_rn(value / 127.5f - 1.0f); }

// Row and column of a patch in the grid of them; `merge` 1 leaves the order as it is.
template <bool kMerged>
__device__ __forceinline__ unsigned patch_row(unsigned index, int columns, int merge) {
  if constexpr (!kMerged) return index / columns;
  return index / (columns * merge) * merge + index % (merge * merge) / merge;
}
template <bool kMerged>
__device__ __forceinline__ unsigned patch_column(unsigned index, int columns, int merge) {
  if constexpr (!kMerged) return index % columns;
  return index / (merge * merge) % (columns / merge) * merge + index % merge;
}

template <bool kMerged>
__device__ __forceinline__ void patches(const uint8_t* image, bf16* out, int columns, int patch,
                                        int out_stride, int merge) {
  pdl_trigger();
  const int top = patch_row<kMerged>(blockIdx.x, columns, merge) * patch;
  const int left = patch_column<kMerged>(blockIdx.x, columns, merge) * patch;
  const int image_width = columns * patch, area = patch * patch;
  pdl_wait();
  for (int i = threadIdx.x; i < 3 * area; i += blockDim.x) {
    const int channel = i / area, y = i % area / patch, x = i % patch;
    const size_t pixel = static_cast<size_t>(top + y) * image_width + left + x;
    out[static_cast<size_t>(blockIdx.x) * out_stride + i] =
        unit(static_cast<float>(image[pixel * 3 + channel]));
  }
}

extern "C" __global__ void __launch_bounds__(256)
    image_patches_bf16(const uint8_t* image, bf16* out, int columns, int patch, int out_stride) {
  patches<false>(image, out, columns, patch, out_stride, 1);
}

extern "C" __global__ void __launch_bounds__(256)
    image_patches_merged_bf16(const uint8_t* image, bf16* out, int columns, int patch, int out_stride,
                              int merge) {
  patches<true>(image, out, columns, patch, out_stride, merge);
}

// Source pixels that one result takes along an axis, as kept in shared memory.
struct Taps {
  int first, count;
  int weight[kMaxTaps];  // units of 2^-22; for the nearest two: weight[0] is the second's, as a float
};

// As in Pillow's Resample.c, double by double.
__device__ void area_taps(Taps& taps, int side, int to, int index) {
  const double scale = __ddiv_rn(side, to), stretch = fmax(scale, 1.0);
  const double center = __dmul_rn(index + 0.5, scale), inverse = __ddiv_rn(1.0, stretch);
  const int first = max(static_cast<int>(__dadd_rn(__dsub_rn(center, stretch), 0.5)), 0);
  const int end = min(static_cast<int>(__dadd_rn(__dadd_rn(center, stretch), 0.5)), side);
  const auto raw = [&](int at) {
    const double offset = __dadd_rn(__dsub_rn(first + at, center), 0.5);
    return fmax(__dsub_rn(1.0, fabs(__dmul_rn(offset, inverse))), 0.0);
  };
  taps.first = first;
  taps.count = min(end - first, kMaxTaps);
  double total = 0.0;
  for (int i = 0; i < taps.count; ++i) total = __dadd_rn(total, raw(i));
  for (int i = 0; i < taps.count; ++i) {
    const double share = __dmul_rn(__ddiv_rn(raw(i), total), 4194304.0);
    taps.weight[i] = static_cast<int>(__dadd_rn(0.5, share));
  }
}

// As in torch's upsample_bilinear2d.
__device__ void nearest_taps(Taps& taps, int side, int to, int index) {
  const float scale = __fdiv_rn(side, to);
  const float source = fmaxf(__fmaf_rn(scale, index + 0.5f, -0.5f), 0.0f);
  taps.first = min(static_cast<int>(source), side - 1);
  taps.count = min(2, side - taps.first);
  taps.weight[0] = __float_as_int(fminf(fmaxf(source - taps.first, 0.0f), 1.0f));
}

__device__ Rgb area_average(const uint8_t* image, const Picture& p, const Taps& down,
                            const Taps& across) {
  constexpr int half = 1 << 21;
  Rgb sum{half, half, half};
  for (int i = 0; i < down.count; ++i) {
    Rgb line{half, half, half};
    for (int j = 0; j < across.count; ++j) {
      const Rgb pixel = picture_pixel(image, p, down.first + i, across.first + j);
      line.r += pixel.r * across.weight[j];
      line.g += pixel.g * across.weight[j];
      line.b += pixel.b * across.weight[j];
    }
    sum.r += level(line.r >> 22) * down.weight[i];
    sum.g += level(line.g >> 22) * down.weight[i];
    sum.b += level(line.b >> 22) * down.weight[i];
  }
  return {level(sum.r >> 22), level(sum.g >> 22), level(sum.b >> 22)};
}

__device__ Rgb nearest_four(const uint8_t* image, const Picture& p, const Taps& down,
                            const Taps& across) {
  const float y1 = __int_as_float(down.weight[0]), x1 = __int_as_float(across.weight[0]);
  const float y0 = __fsub_rn(1.0f, y1), x0 = __fsub_rn(1.0f, x1);
  const float w00 = __fmul_rn(y0, x0), w01 = __fmul_rn(y0, x1);
  const float w10 = __fmul_rn(y1, x0), w11 = __fmul_rn(y1, x1);
  const int below = down.first + down.count - 1, beside = across.first + across.count - 1;
  const Rgb a = picture_pixel(image, p, down.first, across.first);
  const Rgb b = picture_pixel(image, p, down.first, beside);
  const Rgb c = picture_pixel(image, p, below, across.first);
  const Rgb d = picture_pixel(image, p, below, beside);
  const auto mix = [&](int a, int b, int c, int d) {
    const float sum = __fmaf_rn(a, w00, __fmul_rn(b, w01));
    return level(__float2int_rn(__fmaf_rn(d, w11, __fmaf_rn(c, w10, sum))));
  };
  return {mix(a.r, b.r, c.r, d.r), mix(a.g, b.g, c.g, d.g), mix(a.b, b.b, c.b, d.b)};
}

template <bool kMerged>
__device__ __forceinline__ void raw_patches(const uint8_t* image, const int* picture, bf16* out, int bytes,
                                            int columns, int patch, int out_stride, int nearest, int merge) {
  extern __shared__ Taps taps[];  // of the patch's rows, then of its columns
  pdl_trigger();
  pdl_wait();
  const Picture p = *reinterpret_cast<const Picture*>(picture);
  const int top = patch_row<kMerged>(blockIdx.x, columns, merge) * patch - p.top;
  const int left = patch_column<kMerged>(blockIdx.x, columns, merge) * patch - p.left;
  const int height = p.turned_height(), width = p.turned_width();
  const bool usable = p.fits(bytes, columns * patch) && 2 * ((height - 1) / p.inner_height + 1) < kMaxTaps &&
                      2 * ((width - 1) / p.inner_width + 1) < kMaxTaps;
  for (int i = threadIdx.x; usable && i < 2 * patch; i += blockDim.x) {
    const bool row = i < patch;
    const int index = row ? top + i : left + i - patch;
    const int side = row ? height : width, to = row ? p.inner_height : p.inner_width;
    if (index < 0 || index >= to) continue;
    if (nearest) {
      nearest_taps(taps[i], side, to, index);
    } else {
      area_taps(taps[i], side, to, index);
    }
  }
  __syncthreads();
  const int area = patch * patch;
  bf16* row = out + static_cast<size_t>(blockIdx.x) * out_stride;
  for (int i = threadIdx.x; i < area; i += blockDim.x) {
    const int y = i / patch, x = i % patch;
    const bool inside = usable && top + y >= 0 && top + y < p.inner_height && left + x >= 0 &&
                        left + x < p.inner_width;
    Rgb pixel{0, 0, 0};
    if (inside) {
      const Taps &down = taps[y], &across = taps[patch + x];
      pixel = nearest ? nearest_four(image, p, down, across) : area_average(image, p, down, across);
    }
    row[i] = unit(static_cast<float>(pixel.r));
    row[area + i] = unit(static_cast<float>(pixel.g));
    row[2 * area + i] = unit(static_cast<float>(pixel.b));
  }
}

extern "C" __global__ void __launch_bounds__(256)
    image_patches_raw_bf16(const uint8_t* image, const int* picture, bf16* out, int bytes, int columns,
                           int patch, int out_stride, int nearest) {
  raw_patches<false>(image, picture, out, bytes, columns, patch, out_stride, nearest, 1);
}

extern "C" __global__ void __launch_bounds__(256)
    image_patches_raw_merged_bf16(const uint8_t* image, const int* picture, bf16* out, int bytes,
                                  int columns, int patch, int out_stride, int nearest, int merge) {
  raw_patches<true>(image, picture, out, bytes, columns, patch, out_stride, nearest, merge);
}
