// Tensor-core products: a warp's own, and its part of a warpgroup's.
#include <cmath>
#include <cstring>
#include <memory>

#include "machine.hpp"
#include "values.hpp"

namespace emulator {

namespace {

// c [16, n] += a [16, k] b^T, b [n, k] as b_turned [k, n]: what the compiler makes vectors of.
template <int kMostColumns>
void multiply(float (&c)[16][kMostColumns], const float (*a)[32], const float (*b_turned)[kMostColumns], int columns,
              int depth) {
  for (int row = 0; row < 16; ++row) {
    float sum[kMostColumns] = {};
    for (int k = 0; k < depth; ++k) {
      const float x = a[row][k];
      for (int n = 0; n < columns; ++n) sum[n] += x * b_turned[k][n];
    }
    for (int n = 0; n < columns; ++n) c[row][n] += sum[n];
  }
}

float low(uint32_t two) { return wide_bf16(static_cast<uint16_t>(two)); }
float high(uint32_t two) { return wide_bf16(static_cast<uint16_t>(two >> 16)); }

// What a descriptor of wgmma says.
struct Tile {
  uint32_t start, leading, stride, swizzle;

  explicit Tile(uint64_t bits)
      : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4) {
    const uint32_t kind = bits >> 62;
    if (!kind) fail("wgmma: a tile without a swizzle, which is not emulated");
    if (bits >> 49 & 7) fail("wgmma: a tile with a base offset, which is not emulated");
    swizzle = 256 >> kind;  // 128, 64 or 32 bytes
  }

  const unsigned char* unit(uint32_t at) const {
    at = at ^ ((at >> 7 & (swizzle / 16 - 1)) << 4);
    return shared_memory(at, 16, "wgmma");
  }
};

void widen(const unsigned char* unit, int element_bytes, float* to, int step) {
  for (int i = 0; i < 16 / element_bytes; ++i) {
    if (element_bytes == 1) {
      to[i * step] = wide_e4m3(unit[i]);
    } else {
      uint16_t bits;
      std::memcpy(&bits, unit + 2 * i, 2);
      to[i * step] = wide_bf16(bits);
    }
  }
}

// 32 bytes of a row, which runs along the product's inner dimension.
void read_row(const Tile& tile, int row, int element_bytes, float* to, int step) {
  const uint32_t at = tile.start + row / 8 * tile.stride + row % 8 * tile.swizzle;
  for (int unit = 0; unit < 2; ++unit) {
    widen(tile.unit(at + unit * 16), element_bytes, to + unit * (16 / element_bytes) * step, step);
  }
}

constexpr int kMost = 256;

struct Operands {
  float a[16][32], b[32][kMost], c[16][kMost];
};

void perform(const Product& product, const Warp& warp) {
  static thread_local const auto held = std::make_unique<Operands>();  // too much for a fiber's stack
  auto& [a, b, c] = *held;
  const int depth = 32 / product.element_bytes, slab = warp.index % 4;
  const Tile columns(product.b_tile);
  if (product.along_columns) {
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < product.columns; n += 8) {
        const uint32_t at = columns.start + n / 64 * columns.leading + k / 8 * columns.stride + k % 8 * 128 + n % 64 * 2;
        widen(columns.unit(at), 2, &b[k][n], 1);
      }
    }
  } else {
    for (int n = 0; n < product.columns; ++n) read_row(columns, n, product.element_bytes, &b[0][n], kMost);
  }
  if (product.from_registers) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        float* to = &a[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
        to[0] = low(product.a[lane][i]);
        to[1] = high(product.a[lane][i]);
      }
    }
  } else {
    const Tile rows(product.a_tile);
    for (int row = 0; row < 16; ++row) read_row(rows, slab * 16 + row, product.element_bytes, a[row], 1);
  }
  const auto each = [&](const auto& apply) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < product.columns / 2; ++i) {
        apply(product.d[lane][i], c[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2]);
      }
    }
  };
  each([&](float& d, float& sum) { sum = product.keep ? d : 0.0f; });
  multiply<kMost>(c, a, b, product.columns, depth);
  each([](float& d, float& sum) { d = sum; });
}

}  // namespace

void mma(float* const* d, const uint32_t (*a)[4], const uint32_t (*b)[2], int depth) {
  float x[16][32], y[32][8], c[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < depth / 8; ++half) {
      for (int i = 0; i < 2; ++i) {
        x[row + i * 8][pair + half * 8] = low(a[lane][half * 2 + i]);
        x[row + i * 8][pair + half * 8 + 1] = high(a[lane][half * 2 + i]);
      }
      y[pair + half * 8][row] = low(b[lane][half]);
      y[pair + half * 8 + 1][row] = high(b[lane][half]);
    }
    for (int i = 0; i < 4; ++i) c[row + i / 2 * 8][pair + i % 2] = d[lane][i];
  }
  multiply<8>(c, x, y, 8, depth);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) d[lane][i] = c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

namespace {

struct Asked {
  const Product* product;
  float* d;
  const uint32_t* a;
};

}  // namespace

void product(const Product& product, float* d, const uint32_t* a) {
  Asked own = {&product, d, a};
  together(0xffffffffu, "wgmma", &own, [](Warp& warp) {
    warp.open.push_back(*static_cast<Asked*>(warp.lanes[0]->deposit)->product);
    Product& made = warp.open.back();
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = *static_cast<Asked*>(warp.lanes[lane]->deposit);
      made.d[lane] = from.d;
      if (from.a) std::memcpy(made.a[lane], from.a, sizeof made.a[lane]);
    }
  });
}

void product_commit() {
  together(0xffffffffu, "wgmma.commit_group", nullptr, [](Warp& warp) {
    warp.groups.push_back(std::move(warp.open));
    warp.open.clear();
  });
}

void product_wait(size_t pending) {
  together(0xffffffffu, "wgmma.wait_group", nullptr, [pending](Warp& warp) {
    while (warp.groups.size() > pending) {
      for (const Product& product : warp.groups.front()) perform(product, warp);
      warp.groups.pop_front();
    }
  });
}

}  // namespace emulator
