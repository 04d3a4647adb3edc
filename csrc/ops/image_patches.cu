// image_patches: pixel / 127.5 - 1, one row a patch, columns (channel, y, x) as in a Conv2d weight
// image [Y, X, 3] uint8 contiguous; out [(Y/p)(X/p), 3 p p] bf16, rows out_stride elements apart
// one block a patch
// bound: memory, Y X 3 (1 + 2) bytes
#include <cstdint>

#include "../common/pdl.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(256)
    image_patches_bf16(const uint8_t* image, bf16* out, int columns, int patch, int out_stride) {
  pdl_trigger();
  const int top = blockIdx.x / columns * patch, left = blockIdx.x % columns * patch;
  const int image_width = columns * patch, area = patch * patch;
  pdl_wait();
  for (int i = threadIdx.x; i < 3 * area; i += blockDim.x) {
    const int channel = i / area, y = i % area / patch, x = i % patch;
    const size_t pixel = static_cast<size_t>(top + y) * image_width + left + x;
    const float value = static_cast<float>(image[pixel * 3 + channel]) / 127.5f - 1.0f;
    out[static_cast<size_t>(blockIdx.x) * out_stride + i] = __float2bfloat16_rn(value);
  }
}
