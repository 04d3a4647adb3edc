// One pixel of a camera's bytes as RGB. The fields and kinds are those of kernels/picture.py; the
// integers of YUV and Bayer are OpenCV's, so that the grey levels equal the host's.
#pragma once

#include <cstdint>

namespace flashrt {

struct Rgb {
  int r, g, b;
};

enum PictureKind { kPacked, kWide, kYuv422, kYuv420, kBayer };

struct Picture {
  int kind, height, width, step, pixel, first, second, third, turns;
  int inner_height, inner_width, top, left;

  __device__ __forceinline__ int turned_height() const { return turns & 1 ? width : height; }
  __device__ __forceinline__ int turned_width() const { return turns & 1 ? height : width; }

  // Whether every pixel lies inside that many bytes and the result on the square: as Picture.fits of
  // kernels/picture.py.
  __device__ __forceinline__ bool fits(int bytes, int size) const {
    const bool packed = kind == kPacked || kind == kWide, mosaic = kind == kYuv420 || kind == kBayer;
    const int ends[3] = {packed ? pixel : kind == kYuv422 ? 2 : 1,
                         packed ? pixel : kind == kYuv422 ? 4 : 2,
                         kind == kPacked ? pixel : kind == kWide ? 1 : kind == kYuv422 ? 4 : 2};
    const long long pairs = (width + 1ll) / 2;
    const long long row = packed ? 1ll * width * pixel : kind == kYuv422 ? pairs * 4
                          : kind == kYuv420 ? pairs * 2 : width;
    const long long rows = kind == kYuv420 ? height * 3ll / 2 : height;
    return (packed || mosaic || kind == kYuv422) && height > 0 && width > 0 && inner_height > 0 &&
           inner_width > 0 && first >= 0 && first < ends[0] && second >= 0 && second < ends[1] &&
           third >= 0 && third < ends[2] && turns >= 0 && turns < 4 && top >= 0 && left >= 0 &&
           top <= size - inner_height && left <= size - inner_width && row <= step &&
           rows * step <= bytes;
  }
};

__device__ __forceinline__ int level(int value) { return min(max(value, 0), 255); }

__device__ __forceinline__ Rgb from_yuv(int y, int u, int v) {
  const int luma = max(y - 16, 0) * 1220542 + (1 << 19);
  u -= 128, v -= 128;
  return {level((luma + 1673527 * v) >> 20), level((luma - 852492 * v - 409993 * u) >> 20),
          level((luma + 2116026 * u) >> 20)};
}

__device__ __forceinline__ Rgb from_bayer(const uint8_t* image, const Picture& p, int y, int x) {
  // The border has the colours of its neighbours. Pictures of two rows or columns are all border.
  y = max(min(y, p.height - 2), min(1, p.height - 1));
  x = max(min(x, p.width - 2), min(1, p.width - 1));
  const int up = max(y - 1, 0) * p.step, down = min(y + 1, p.height - 1) * p.step;
  const int left = max(x - 1, 0), right = min(x + 1, p.width - 1);
  const uint8_t* row = image + y * p.step;
  const int own = row[x], beside = row[left] + row[right], above = image[up + x] + image[down + x];
  const int corners = image[up + left] + image[up + right] + image[down + left] + image[down + right];
  const int cross = (beside + above + 2) >> 2, diagonal = (corners + 2) >> 2;
  const bool red_row = (y & 1) == p.second, red_column = (x & 1) == p.third;
  if (red_row == red_column) return red_row ? Rgb{own, cross, diagonal} : Rgb{diagonal, cross, own};
  const int h = (beside + 1) >> 1, v = (above + 1) >> 1;
  return red_row ? Rgb{h, own, v} : Rgb{v, own, h};
}

// The pixel at (y, x) of the picture after its turns.
__device__ __forceinline__ Rgb picture_pixel(const uint8_t* image, const Picture& p, int row,
                                             int column) {
  const int turned_y = p.turns & 1 ? column : row, turned_x = p.turns & 1 ? row : column;
  const int y = p.turns == 1 || p.turns == 2 ? p.height - 1 - turned_y : turned_y;
  const int x = p.turns >= 2 ? p.width - 1 - turned_x : turned_x;
  const uint8_t* line = image + y * p.step;
  switch (p.kind) {
    case kPacked: {
      const uint8_t* at = line + x * p.pixel;
      return {at[p.first], at[p.second], at[p.third]};
    }
    case kWide: {
      const uint8_t* at = line + x * p.pixel;
      const int grey = (at[p.first] * 256 + at[p.second] + 128) / 257;
      return {grey, grey, grey};
    }
    case kYuv422: {
      const uint8_t* pair = line + (x >> 1) * 4;
      return from_yuv(pair[p.first + (x & 1) * 2], pair[p.second], pair[p.third]);
    }
    case kYuv420: {
      const uint8_t* pair = image + (p.height + (y >> 1)) * p.step + (x & ~1);
      return from_yuv(line[x], pair[p.second], pair[p.third]);
    }
    default:
      return from_bayer(image, p, y, x);
  }
}

}  // namespace flashrt
