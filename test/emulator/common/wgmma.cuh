// As csrc/common/wgmma.cuh.
#pragma once

#include <cstdint>

#include "wgmma_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FLASHRT_SM90A 1

namespace flashrt {

inline void wgmma_begin() {}
inline void wgmma_commit() { emulator::product_commit(); }
template <int kPending>
inline void wgmma_wait() {
  emulator::product_wait(kPending);
}

inline emulator::Product product_of(int columns, int element_bytes, uint64_t b, int keep) {
  emulator::Product made = {};
  made.columns = columns;
  made.element_bytes = element_bytes;
  made.b_tile = b;
  made.keep = keep != 0;
  return made;
}

template <int kN>
struct Wgmma {
  static_assert(kN % 8 == 0 && kN >= 8 && kN <= 256, "as wgmma takes it");
  static void run(float (&d)[kN / 2], uint64_t a, uint64_t b, int keep) {
    emulator::Product made = product_of(kN, 2, b, keep);
    made.a_tile = a;
    emulator::product(made, d, nullptr);
  }
};

template <int kN>
struct WgmmaE4m3 {
  static void run(float (&d)[kN / 2], uint64_t a, uint64_t b, int keep) {
    emulator::Product made = product_of(kN, 1, b, keep);
    made.a_tile = a;
    emulator::product(made, d, nullptr);
  }
};

template <int kN>
struct WgmmaRegisters {
  template <int kAlongColumns = 0>
  static void run(float (&d)[kN / 2], const uint32_t (&a)[4], uint64_t b, int keep) {
    emulator::Product made = product_of(kN, 2, b, keep);
    made.from_registers = true;
    made.along_columns = kAlongColumns != 0;
    emulator::product(made, d, a);
  }
};

inline void wgmma_sync(int id, int threads) { emulator::sync_named(id, threads); }

}  // namespace flashrt

#endif
