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
void multiply(float (&c)[16][kMostColumns], float (*a)[32], float (*b_turned)[kMostColumns], int columns,
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

// What a product reads of shared memory.
std::unique_ptr<Operands> read(const Product& asked) {
  auto operands = std::make_unique<Operands>();
  auto& [a, b] = *operands;
  const int depth = 32 / asked.element_bytes;
  const Tile columns(asked.b_tile);
  if (asked.along_columns) {
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < asked.columns; n += 8) {
        const uint32_t row = k / 8 * columns.stride + k % 8 * 128;
        const uint32_t at = columns.start + n / 64 * columns.leading + row + n % 64 * 2;
        widen(columns.unit(at), 2, &b[k][n], 1);
      }
    }
  } else {
    for (int n = 0; n < asked.columns; ++n) read_row(columns, n, asked.element_bytes, &b[0][n], 256);
  }
  if (!asked.from_registers) {
    const Tile rows(asked.a_tile);
    for (int row = 0; row < 64; ++row) read_row(rows, row, asked.element_bytes, a[row], 1);
  }
  return operands;
}

// A warp's sixteen rows of it.
void perform(const WarpProduct& own, SharedProduct& product, int slab) {
  static thread_local const auto c_held = std::make_unique<float[][256]>(16);  // much for a fiber's stack
  auto& c = *reinterpret_cast<float(*)[16][256]>(c_held.get());
  auto& [a, b] = own.operands ? *own.operands : *product.operands;
  const Product& asked = product.asked;
  if (asked.from_registers) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        float* to = &a[slab * 16 + lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8];
        to[0] = low(own.a[lane][i]);
        to[1] = high(own.a[lane][i]);
      }
    }
  }
  const auto each = [&](const auto& apply) {
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < asked.columns / 2; ++i) {
        apply(own.d[lane][i], c[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2]);
      }
    }
  };
  each([&](float& d, float& sum) { sum = asked.keep ? d : 0.0f; });
  multiply<256>(c, &a[slab * 16], b, asked.columns, 32 / asked.element_bytes);
  each([](float& d, float& sum) { d = sum; });
}

bool same(const Product& x, const Product& y) {
  return x.columns == y.columns && x.element_bytes == y.element_bytes && x.keep == y.keep &&
         x.from_registers == y.from_registers && x.along_columns == y.along_columns && x.a_tile == y.a_tile &&
         x.b_tile == y.b_tile;
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
    Warpgroup& group = *warp.group;
    const Product& asked = *static_cast<Asked*>(warp.lanes[0]->deposit)->product;
    const size_t number = warp.asked++;
    if (number == group.first + group.products.size()) {
      group.products.emplace_back();
      group.products.back().asked = asked;
    }
    SharedProduct& shared = group.products[number - group.first];
    if (!same(shared.asked, asked)) fail("wgmma: the warps of a warpgroup ask for different products");
    ++shared.warps;
    WarpProduct& made = warp.products.emplace_back();
    made.number = number;
    if (launched->at_once()) made.operands = read(asked);
    for (int lane = 0; lane < 32; ++lane) {
      const auto& from = *static_cast<Asked*>(warp.lanes[lane]->deposit);
      made.d[lane] = from.d;
      if (from.a) std::memcpy(made.a[lane], from.a, sizeof made.a[lane]);
    }
    for (Fiber* fiber : group.waiting) wake(fiber);
    group.waiting.clear();
  });
}

void product_commit() {
  together(0xffffffffu, "wgmma.commit_group", nullptr, [](Warp& warp) { warp.groups.push_back(warp.asked); });
}

void product_wait(size_t pending) {
  together(0xffffffffu, "wgmma.wait_group", nullptr, [pending](Warp& warp) {
    Warpgroup& group = *warp.group;
    while (warp.groups.size() > pending) {
      const size_t end = warp.groups.front();
      warp.groups.pop_front();
      while (!warp.products.empty() && warp.products.front().number < end) {
        const WarpProduct& own = warp.products.front();
        while (group.products[own.number - group.first].warps < 4) {
          group.waiting.push_back(current);
          wait("wgmma.wait_group, for the other warps of the warpgroup");
        }
        SharedProduct& shared = group.products[own.number - group.first];
        if (!own.operands && !shared.operands) shared.operands = read(shared.asked);
        perform(own, shared, warp.index % 4);
        ++shared.done;
        warp.products.pop_front();
        while (!group.products.empty() && group.products.front().done == 4) {
          group.products.pop_front();
          ++group.first;
        }
      }
    }
  });
}

}  // namespace emulator
