// Guidance of an Euler step towards known numbers (real-time chunking).
//
// The sample at `time` expects the action clean = x - time v. Guided, it moves `share` = -dt / time of
// the way to g previous + (1 - g) clean: with g = 1 it ends exactly at previous, as the last share is 1;
// with g = 0 the step is the plain one, to the bit.
#pragma once

#include "stream.cuh"

namespace flashrt {

// previous, weight [rows, numbers] float32, rows *_stride apart; written by the host before the launch
struct Guide {
  const float* previous;
  const float* weight;
  int previous_stride, weight_stride;
  float time, share;
};

__device__ __forceinline__ float guided_step(const Guide& guide, size_t row, int at, float x, float velocity,
                                             float dt) {
  const float g = load_fresh(guide.weight + row * guide.weight_stride + at);
  const float previous = load_fresh(guide.previous + row * guide.previous_stride + at);
  const float clean = fmaf(-guide.time, velocity, x);
  const float wanted = fmaf(g, previous, (1.0f - g) * clean);
  const float guided = fmaf(guide.share, wanted, (1.0f - guide.share) * x);
  return g == 0.0f ? fmaf(dt, velocity, x) : guided;
}

}  // namespace flashrt
