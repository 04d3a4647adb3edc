// Warpgroup-level tensor-core products (wgmma, sm_90a): d[64 x N] += a[64 x 16] b[16 x N], bf16 in,
// or [64 x 32] and [32 x N] of E4M3, float32 out, b from shared memory, a from there or, in bf16, from
// registers. Four warps of a warpgroup issue them together.
//
// An accumulator of thread t (warp w = t / 32 % 4, lane l): d[4 j + i] is row 16 w + l / 4 + 8 (i / 2),
// column 8 j + 2 (l % 4) + i % 2.
#pragma once

#include <cstdint>

#include "wgmma_tiles.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FLASHRT_SM90A 1
#endif

namespace flashrt {

#ifdef FLASHRT_SM90A

// Orders register accesses before the products that follow.
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most kPending committed groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// d = a b + (keep ? d : 0), n columns wide, with a in shared memory.
template <int kN>
struct Wgmma;

// The same with E4M3 in both tiles, 32 columns of each.
template <int kN>
struct WgmmaE4m3;

// The first with a in registers, laid out as for mma_k16. With kAlongColumns b lies as wgmma_columns()
// says.
template <int kN>
struct WgmmaRegisters;

// The accumulators of a product: as operands of the instruction, and their names in it. The other
// operands are named by the numbers that follow: n / 2 and on.
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D64(i) D16(i), D16(i + 16), D16(i + 32), D16(i + 48)
#define ACCUMULATORS_4 D4(0)
#define ACCUMULATORS_8 D4(0), D4(4)
#define ACCUMULATORS_12 D4(0), D4(4), D4(8)
#define ACCUMULATORS_16 D16(0)
#define ACCUMULATORS_20 D16(0), D4(16)
#define ACCUMULATORS_24 D16(0), D4(16), D4(20)
#define ACCUMULATORS_28 D16(0), D4(16), D4(20), D4(24)
#define ACCUMULATORS_32 D16(0), D16(16)
#define ACCUMULATORS_36 D16(0), D16(16), D4(32)
#define ACCUMULATORS_40 D16(0), D16(16), D4(32), D4(36)
#define ACCUMULATORS_48 D16(0), D16(16), D16(32)
#define ACCUMULATORS_56 D16(0), D16(16), D16(32), D4(48), D4(52)
#define ACCUMULATORS_64 D64(0)
#define ACCUMULATORS_72 D64(0), D4(64), D4(68)
#define ACCUMULATORS_76 D64(0), D4(64), D4(68), D4(72)
#define ACCUMULATORS_80 D64(0), D16(64)
#define ACCUMULATORS_84 D64(0), D16(64), D4(80)
#define ACCUMULATORS_92 D64(0), D16(64), D4(80), D4(84), D4(88)
#define ACCUMULATORS_96 D64(0), D16(64), D16(80)
#define ACCUMULATORS_100 D64(0), D16(64), D16(80), D4(96)
#define ACCUMULATORS_128 D64(0), D64(64)
#define REGISTERS_4 "%0, %1, %2, %3"
#define REGISTERS_8 REGISTERS_4 ", %4, %5, %6, %7"
#define REGISTERS_12 REGISTERS_8 ", %8, %9, %10, %11"
#define REGISTERS_16 REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_20 REGISTERS_16 ", %16, %17, %18, %19"
#define REGISTERS_24 REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_28 REGISTERS_24 ", %24, %25, %26, %27"
#define REGISTERS_32 REGISTERS_28 ", %28, %29, %30, %31"
#define REGISTERS_36 REGISTERS_32 ", %32, %33, %34, %35"
#define REGISTERS_40 REGISTERS_36 ", %36, %37, %38, %39"
#define REGISTERS_48 REGISTERS_36 ", %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_56 REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_64 REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define REGISTERS_72 REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define REGISTERS_76 REGISTERS_72 ", %72, %73, %74, %75"
#define REGISTERS_80 REGISTERS_76 ", %76, %77, %78, %79"
#define REGISTERS_84 REGISTERS_80 ", %80, %81, %82, %83"
#define REGISTERS_92 REGISTERS_84 ", %84, %85, %86, %87, %88, %89, %90, %91"
#define REGISTERS_96 REGISTERS_92 ", %92, %93, %94, %95"
#define REGISTERS_100 REGISTERS_96 ", %96, %97, %98, %99"
#define REGISTERS_128 \
  REGISTERS_100 \
  ", %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112" \
  ", %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125" \
  ", %126, %127"

// One width of n columns: half = n / 2 accumulators, n0 ... n6 are the numbers from half on.
#define WGMMA(n, half, n0, n1, n2, n3, n4, n5, n6)                                                 \
  template <>                                                                                      \
  struct Wgmma<n> {                                                                                \
    static __device__ __forceinline__ void run(float (&d)[half], uint64_t a, uint64_t b,           \
                                               int keep) {                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                     \
                   "{" REGISTERS_##half "}, %" #n0 ", %" #n1 ", p, 1, 1, 0, 0;\n}\n"               \
                   : ACCUMULATORS_##half                                                           \
                   : "l"(a), "l"(b), "r"(keep));                                                   \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct WgmmaE4m3<n> {                                                                            \
    static __device__ __forceinline__ void run(float (&d)[half], uint64_t a, uint64_t b,           \
                                               int keep) {                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 "                     \
                   "{" REGISTERS_##half "}, %" #n0 ", %" #n1 ", p, 1, 1;\n}\n"                     \
                   : ACCUMULATORS_##half                                                           \
                   : "l"(a), "l"(b), "r"(keep));                                                   \
    }                                                                                              \
  };                                                                                               \
  template <>                                                                                      \
  struct WgmmaRegisters<n> {                                                                       \
    template <int kAlongColumns = 0>                                                               \
    static __device__ __forceinline__ void run(float (&d)[half], const uint32_t (&a)[4],           \
                                               uint64_t b, int keep) {                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n5 ", 0;\n"                               \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                     \
                   "{" REGISTERS_##half "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, "            \
                   "%" #n4 ", p, 1, 1, %" #n6 ";\n}\n"                                             \
                   : ACCUMULATORS_##half                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep),                \
                     "n"(kAlongColumns));                                                          \
    }                                                                                              \
  };

WGMMA(8, 4, 4, 5, 6, 7, 8, 9, 10)
WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
WGMMA(24, 12, 12, 13, 14, 15, 16, 17, 18)
WGMMA(32, 16, 16, 17, 18, 19, 20, 21, 22)
WGMMA(40, 20, 20, 21, 22, 23, 24, 25, 26)
WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
WGMMA(56, 28, 28, 29, 30, 31, 32, 33, 34)
WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA(72, 36, 36, 37, 38, 39, 40, 41, 42)
WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
WGMMA(112, 56, 56, 57, 58, 59, 60, 61, 62)
WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA(144, 72, 72, 73, 74, 75, 76, 77, 78)
WGMMA(152, 76, 76, 77, 78, 79, 80, 81, 82)
WGMMA(160, 80, 80, 81, 82, 83, 84, 85, 86)
WGMMA(168, 84, 84, 85, 86, 87, 88, 89, 90)
WGMMA(184, 92, 92, 93, 94, 95, 96, 97, 98)
WGMMA(192, 96, 96, 97, 98, 99, 100, 101, 102)
WGMMA(200, 100, 100, 101, 102, 103, 104, 105, 106)
WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)

#undef WGMMA
#undef REGISTERS_4
#undef ACCUMULATORS_4
#undef REGISTERS_8
#undef ACCUMULATORS_8
#undef REGISTERS_12
#undef ACCUMULATORS_12
#undef REGISTERS_16
#undef ACCUMULATORS_16
#undef REGISTERS_20
#undef ACCUMULATORS_20
#undef REGISTERS_28
#undef ACCUMULATORS_28
#undef REGISTERS_32
#undef ACCUMULATORS_32
#undef REGISTERS_24
#undef ACCUMULATORS_24
#undef REGISTERS_36
#undef ACCUMULATORS_36
#undef REGISTERS_40
#undef ACCUMULATORS_40
#undef REGISTERS_48
#undef ACCUMULATORS_48
#undef REGISTERS_56
#undef ACCUMULATORS_56
#undef REGISTERS_64
#undef ACCUMULATORS_64
#undef REGISTERS_80
#undef ACCUMULATORS_80
#undef REGISTERS_72
#undef ACCUMULATORS_72
#undef REGISTERS_76
#undef ACCUMULATORS_76
#undef REGISTERS_84
#undef ACCUMULATORS_84
#undef REGISTERS_92
#undef ACCUMULATORS_92
#undef REGISTERS_96
#undef ACCUMULATORS_96
#undef REGISTERS_100
#undef ACCUMULATORS_100
#undef REGISTERS_128
#undef ACCUMULATORS_128
#undef D64
#undef D16
#undef D4

// Waits for the other warps that use barrier `id` of the block, `threads` in all.
__device__ __forceinline__ void wgmma_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#endif  // FLASHRT_SM90A

}  // namespace flashrt
