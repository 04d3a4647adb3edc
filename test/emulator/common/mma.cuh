// As csrc/common/mma.cuh.
#pragma once

#include <cstdint>

namespace flashrt {

struct MmaOperands {
  float* d;
  uint32_t a[4], b[2];
};

inline void mma_depth(MmaOperands own, int depth, const char* what) {
  emulator::together(0xffffffffu, what, &own, [depth](emulator::Warp& warp) {
    float* d[32];
    uint32_t a[32][4], b[32][2];
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = *static_cast<MmaOperands*>(warp.lanes[lane]->deposit);
      d[lane] = from.d;
      std::memcpy(a[lane], from.a, sizeof from.a);
      std::memcpy(b[lane], from.b, sizeof from.b);
    }
    emulator::mma(d, a, b, depth);
  });
}

inline void mma_k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_depth({c, {a[0], a[1], a[2], a[3]}, {b0, b1}}, 16, "mma.m16n8k16");
}

inline void mma_k8(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  mma_depth({c, {a0, a1, 0, 0}, {b0, 0}}, 8, "mma.m16n8k8");
}

inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

struct LoadedTiles {
  uint32_t* r;
  const unsigned char* row;
};

// Tile i / 8's row i % 8 is where lane i says.
template <int kTiles, bool kTransposed>
inline void load_tiles(uint32_t (&r)[kTiles], uint32_t row, const char* what) {
  const bool names = emulator::current->lane < 8 * kTiles;
  LoadedTiles own = {r, names ? emulator::shared_memory(row, 16, what, 16) : nullptr};
  emulator::together(0xffffffffu, what, &own, [](emulator::Warp& warp) {
    const auto of = [&](int lane) -> const LoadedTiles& {
      return *static_cast<LoadedTiles*>(warp.lanes[lane]->deposit);
    };
    for (int tile = 0; tile < kTiles; ++tile) {
      uint16_t values[8][8];
      for (int i = 0; i < 8; ++i) std::memcpy(values[i], of(tile * 8 + i).row, 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int i = lane / 4, j = lane % 4 * 2;
        const uint32_t first = kTransposed ? values[j][i] : values[i][j];
        const uint32_t second = kTransposed ? values[j + 1][i] : values[i][j + 1];
        of(lane).r[tile] = first | second << 16;
      }
    }
  });
}

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t row) { load_tiles<4, false>(r, row, "ldmatrix.x4"); }
inline void ldmatrix_x2(uint32_t (&r)[2], uint32_t row) { load_tiles<2, false>(r, row, "ldmatrix.x2"); }
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t row) { load_tiles<4, true>(r, row, "ldmatrix.x4.trans"); }
inline void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t row) { load_tiles<2, true>(r, row, "ldmatrix.x2.trans"); }

inline void copy16_async(uint32_t shared, const void* global, bool keep = true) {
  emulator::copy_async(shared, global, keep ? 16 : 0, keep ? 0 : 16);
}
template <int kBytes>
inline void copy_async(uint32_t shared, const void* global, bool keep = true) {
  static_assert(kBytes == 4 || kBytes == 8, "16 bytes go past L1");
  emulator::copy_async(shared, global, keep ? kBytes : 0, keep ? 0 : kBytes);
}
inline void copy_commit() { emulator::copy_commit(); }
template <int kPending>
inline void copy_wait() {
  emulator::copy_wait(kPending);
}

}  // namespace flashrt
