// How warpgroup-level products (wgmma.cuh) are told where a tile lies in shared memory.
#pragma once

#include <cstdint>

namespace flashrt {

// A tile in shared memory for wgmma: rows of kRowBytes (128 or 64, the swizzle has the same width),
// starting at a multiple of eight rows; `group` bytes between groups of eight rows.
template <int kRowBytes = 128>
__device__ __forceinline__ uint64_t wgmma_tile(uint32_t shared, uint32_t group = 8 * kRowBytes) {
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  return static_cast<uint64_t>((shared & 0x3ffff) >> 4) | (1ull << 16) |
         (static_cast<uint64_t>(group >> 4) << 32) | (kSwizzle << 62);
}

// A tile whose rows run along the product's inner dimension: chunks of 64 columns, each a tile as
// above, `chunk` bytes apart. Sixteen rows further down are 2,048 bytes.
__device__ __forceinline__ uint64_t wgmma_columns(uint32_t shared, uint32_t chunk) {
  return static_cast<uint64_t>((shared & 0x3ffff) >> 4) | (static_cast<uint64_t>(chunk >> 4) << 16) |
         (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

// The same tile sixteen columns of bf16 (32 bytes) further to the right.
__device__ __forceinline__ uint64_t wgmma_step(uint64_t tile, int steps) { return tile + 2 * steps; }

}  // namespace flashrt
