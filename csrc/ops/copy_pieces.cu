// copy_pieces: up to eight pieces of memory, each rows of equal width, copied by one launch
// to, from: device addresses of any alignment; width: bytes of a row; pitches: bytes between rows, at
// least the width, unused where there is one row; laid out as flashrt_piece of csrc/abi/handover.h
// bytes between rows are neither read nor written; no piece may read what another one writes
// 16 bytes a thread and step where addresses and pitches allow, else 4, else 1; the end of a row that
// is left by bytes; needs rows * width < 2^32 in every piece; any grid; starts behind all before it
// bound: memory, each byte read and written once; the pieces are the parameter: nothing is read first
#include <cstdint>

#include "../common/memory.cuh"

namespace flashrt {

constexpr int kMostPieces = 8;

struct CopyPiece {
  uint64_t to, from, width, rows, to_pitch, from_pitch;
};
static_assert(sizeof(CopyPiece) == 48, "as csrc/abi/handover.h and devices/cuda_copy.py have it");

struct CopyPlan {
  CopyPiece piece[kMostPieces];
  uint64_t count;
};

// What is moved at once: its bytes, and the registers that hold it.
template <uint32_t kBytes_, class Value_>
struct Portion {
  static constexpr uint32_t kBytes = kBytes_;
  using Value = Value_;
};
using SixteenBytes = Portion<16, uint4>;
using Word = Portion<4, uint32_t>;
using Byte = Portion<1, OneByte>;

// Whole units of every row, from byte `begin` of it on. Four loads are under way at a time.
template <class Unit>
__device__ __forceinline__ void copy_units(const CopyPiece& piece, uint32_t begin, uint32_t units,
                                           uint32_t first, uint32_t step) {
  const uint64_t to = piece.to + begin, from = piece.from + begin;
  const uint64_t total = static_cast<uint64_t>(units) * piece.rows;
  // A piece has fewer than 2^32 bytes, so that its units are divided as 32-bit numbers.
  const auto place = [units](uint64_t index, uint64_t pitch) {
    const uint32_t row = static_cast<uint32_t>(index) / units;
    const uint32_t column = static_cast<uint32_t>(index) - row * units;
    return row * pitch + static_cast<uint64_t>(column) * Unit::kBytes;
  };
  uint64_t at = first;
  for (; at + 3ull * step < total; at += 4ull * step) {
    typename Unit::Value value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) load_at(from + place(at + 1ull * i * step, piece.from_pitch), value[i]);
#pragma unroll
    for (int i = 0; i < 4; ++i) store_at(to + place(at + 1ull * i * step, piece.to_pitch), value[i]);
  }
  for (; at < total; at += step) {
    typename Unit::Value value;
    load_at(from + place(at, piece.from_pitch), value);
    store_at(to + place(at, piece.to_pitch), value);
  }
}

template <class Unit>
__device__ __forceinline__ void copy_piece(const CopyPiece& piece, uint32_t first, uint32_t step) {
  const uint32_t width = static_cast<uint32_t>(piece.width);
  const uint32_t units = width / Unit::kBytes, copied = units * Unit::kBytes;
  copy_units<Unit>(piece, 0, units, first, step);
  if (copied < width) copy_units<Byte>(piece, copied, width - copied, first, step);
}

}  // namespace flashrt

extern "C" __global__ void __launch_bounds__(512)
    copy_pieces(const __grid_constant__ flashrt::CopyPlan plan) {
  using namespace flashrt;
  const uint32_t step = gridDim.x * blockDim.x;
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
  for (uint32_t index = 0; index < plan.count; ++index) {
    const CopyPiece& piece = plan.piece[index];
    const uint64_t pitches = piece.rows > 1 ? piece.to_pitch | piece.from_pitch : 0;
    const uint64_t places = piece.to | piece.from | pitches;
    if (places % SixteenBytes::kBytes == 0) {
      copy_piece<SixteenBytes>(piece, first, step);
    } else if (places % Word::kBytes == 0) {
      copy_piece<Word>(piece, first, step);
    } else {
      copy_piece<Byte>(piece, first, step);
    }
  }
}
