// What every kernel may use without an include: CUDA's types, where a thread is, and its functions.
#pragma once

#include <algorithm>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "machine/machine.hpp"
#include "machine/values.hpp"

// The words __emulator_* are what source.py looks for.
#define __device__
#define __host__
#define __global__ __emulator_entry
#define __shared__ __emulator_shared
#define __constant__ static const
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __restrict__ __restrict
#define __launch_bounds__(...) __emulator_bounds(__VA_ARGS__)
#define __cluster_dims__(...) __emulator_cluster(__VA_ARGS__)
#define __align__(n) __attribute__((aligned(n)))

#define threadIdx (emulator::current->index)
#define blockIdx (emulator::current->block->index)
#define blockDim (emulator::launched->block)
#define gridDim (emulator::launched->grid)
#define warpSize 32

// ---- types

#define EMULATOR_VECTOR(name, T)                              \
  struct name##1 { T x; };                                    \
  struct __attribute__((aligned(2 * sizeof(T)))) name##2 { T x, y; }; \
  struct name##3 { T x, y, z; };                              \
  struct __attribute__((aligned(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)))) name##4 { T x, y, z, w; }; \
  inline name##1 make_##name##1(T x) { return {x}; }          \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }  \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATOR_VECTOR(char, signed char)
EMULATOR_VECTOR(uchar, unsigned char)
EMULATOR_VECTOR(short, short)
EMULATOR_VECTOR(ushort, unsigned short)
EMULATOR_VECTOR(int, int)
EMULATOR_VECTOR(uint, unsigned)
EMULATOR_VECTOR(longlong, long long)
EMULATOR_VECTOR(ulonglong, unsigned long long)
EMULATOR_VECTOR(float, float)
EMULATOR_VECTOR(double, double)
#undef EMULATOR_VECTOR
using dim3 = emulator::Dim3;

// ---- numbers

template <class T>
inline T min(T a, T b) { return b < a ? b : a; }
template <class T>
inline T max(T a, T b) { return a < b ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
inline unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
inline unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
inline unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }

namespace emulator {

// A result that no other operation is made one with.
template <class T>
inline T alone(T v) {
#if defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#endif
  return v;
}

}  // namespace emulator

inline float __fadd_rn(float a, float b) { return emulator::alone(emulator::alone(a) + emulator::alone(b)); }
inline float __fsub_rn(float a, float b) { return emulator::alone(emulator::alone(a) - emulator::alone(b)); }
inline float __fmul_rn(float a, float b) { return emulator::alone(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return emulator::alone(fmaf(a, b, c)); }
inline double __dadd_rn(double a, double b) { return emulator::alone(emulator::alone(a) + emulator::alone(b)); }
inline double __dsub_rn(double a, double b) { return emulator::alone(emulator::alone(a) - emulator::alone(b)); }
inline double __dmul_rn(double a, double b) { return emulator::alone(a * b); }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return emulator::alone(fma(a, b, c)); }

inline int __float2int_rn(float x) { return static_cast<int>(lrintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(llrintf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::float_of(x); }
inline float __int_as_float(int x) { return emulator::float_of(static_cast<unsigned>(x)); }
inline unsigned __float_as_uint(float x) { return emulator::bits_of(x); }
inline int __float_as_int(float x) { return static_cast<int>(emulator::bits_of(x)); }

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> 4 * i & 15;
    unsigned byte = static_cast<unsigned>(bytes >> 8 * (pick & 7)) & 255;
    if (pick & 8) byte = byte & 128 ? 255 : 0;  // its sign, eight times
    result |= byte << 8 * i;
  }
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned result = 0;
  for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> 8 * i) * static_cast<int8_t>(b >> 8 * i);
  return c;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }

template <class T>
inline T __ldg(const T* p) { return *p; }
template <class T>
inline T __ldcg(const T* p) { return *p; }
template <class T>
inline T __ldcs(const T* p) { return *p; }
template <class T>
inline void __stcs(T* p, T v) { *p = v; }
template <class T>
inline void __stcg(T* p, T v) { *p = v; }

// Blocks on two workers may meet in global memory.
template <class T>
inline T atomicAdd(T* p, T v) {
  if constexpr (std::is_integral_v<T>) {
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
  } else {
    T before = *p, after;
    do {
      after = before + v;
    } while (!__atomic_compare_exchange(p, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return before;
  }
}
template <class T>
inline T atomicMax(T* p, T v) {
  T before = *p;
  while (before < v && !__atomic_compare_exchange(p, &before, &v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return before;
}
template <class T>
inline T atomicExch(T* p, T v) {
  return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);
}

// ---- a block's threads, and a warp's

inline void __syncthreads() { emulator::sync_threads(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  emulator::together(mask, "__syncwarp", nullptr, [](emulator::Warp&) {});
}

namespace emulator {

template <class T>
struct Shuffled {
  T value;
  unsigned from;
};

// Every lane gets the value of the lane that it names; its own where there is none.
template <class T>
inline T shuffle(unsigned mask, T value, unsigned from, const char* what) {
  Shuffled<T> own = {value, from};
  together(mask, what, &own, [mask](Warp& warp) {
    const unsigned lanes = mask & warp.existing;
    T values[32];
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (lanes >> lane & 1) values[lane] = static_cast<Shuffled<T>*>(warp.lanes[lane]->deposit)->value;
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (!(lanes >> lane & 1)) continue;
      auto& each = *static_cast<Shuffled<T>*>(warp.lanes[lane]->deposit);
      if (each.from == lane) continue;
      if (!(lanes >> each.from & 1)) fail("a shuffle from lane %u, which does not take part", each.from);
      each.value = values[each.from];
    }
  });
  return own.value;
}

template <class Reduce>
inline unsigned vote(unsigned mask, unsigned value, const char* what, const Reduce& reduce) {
  unsigned own = value;
  together(mask, what, &own, [mask, &reduce](Warp& warp) {
    const unsigned lanes = mask & warp.existing;
    unsigned ballot = 0;
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (lanes >> lane & 1 && *static_cast<unsigned*>(warp.lanes[lane]->deposit)) ballot |= 1u << lane;
    }
    const unsigned result = reduce(ballot, lanes);
    for (unsigned lane = 0; lane < 32; ++lane) {
      if (lanes >> lane & 1) *static_cast<unsigned*>(warp.lanes[lane]->deposit) = result;
    }
  });
  return own;
}

}  // namespace emulator

template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const unsigned lane = emulator::current->lane, first = lane / width * width;
  return emulator::shuffle(mask, value, first + (from & (width - 1)), "__shfl_sync");
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
  const unsigned lane = emulator::current->lane, from = lane ^ other;
  return emulator::shuffle(mask, value, from < (lane / width + 1) * width ? from : lane, "__shfl_xor_sync");
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned step, int width = 32) {
  const unsigned lane = emulator::current->lane, from = lane + step;
  return emulator::shuffle(mask, value, from < (lane / width + 1) * width ? from : lane, "__shfl_down_sync");
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned step, int width = 32) {
  const unsigned lane = emulator::current->lane;
  return emulator::shuffle(mask, value, lane % width >= step ? lane - step : lane, "__shfl_up_sync");
}
inline unsigned __ballot_sync(unsigned mask, int value) {
  return emulator::vote(mask, value != 0, "__ballot_sync", [](unsigned ballot, unsigned) { return ballot; });
}
inline int __any_sync(unsigned mask, int value) {
  return emulator::vote(mask, value != 0, "__any_sync", [](unsigned ballot, unsigned) { return ballot != 0; });
}
inline int __all_sync(unsigned mask, int value) {
  return emulator::vote(mask, value != 0, "__all_sync",
                        [](unsigned ballot, unsigned lanes) { return ballot == lanes; });
}

inline size_t __cvta_generic_to_shared(const void* p) { return emulator::shared_address(p); }
inline size_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<size_t>(p); }

// ---- entries

namespace emulator {

// Calls a kernel as a launch does: an array of the addresses of its arguments.
template <auto kKernel>
struct Entry;
template <class... Parameters, void (*kKernel)(Parameters...)>
struct Entry<kKernel> {
  static void run(void** args) { unpack(args, std::index_sequence_for<Parameters...>()); }

 private:
  template <class T>
  static T argument(const void* from) {
    T value;
    std::memcpy(static_cast<void*>(&value), from, sizeof(T));
    return value;
  }
  template <size_t... kIndex>
  static void unpack([[maybe_unused]] void** args, std::index_sequence<kIndex...>) {
    kKernel(argument<std::remove_cv_t<Parameters>>(args[kIndex])...);
  }
};

struct Declared {
  const char* name;
  void (*run)(void** args);
  unsigned parameters, most_threads;
  Dim3 cluster;  // 0: not said
};

template <class... Parameters>
constexpr unsigned parameters_of(void (*)(Parameters...)) {
  return sizeof...(Parameters);
}

}  // namespace emulator
