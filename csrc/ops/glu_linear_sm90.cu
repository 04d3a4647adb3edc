// glu_linear: out = act(x Wg^T) * (x Wu^T), act gelu_tanh or silu, one kernel for product and gate
// (sm_90a)
// x [M, K], weight [2F, K] (row 2i gate, 2i + 1 up), out [M, F] row-major, all bf16, or all E4M3 with
// x_scale [1], weight_scale [2F] and out_scale [1] float32; float32 accumulation (E4M3: with the bits
// that wgmma keeps) and gate, one rounding. x and weight come as tile maps of 128 bytes (swizzled over
// them). The map of weight sorts its rows: within 16 features, those with an even number lie in front,
// and eight gate rows in front of their eight up rows. So a thread's accumulators hold gate and up of
// two neighbouring features, and what they give is stored from registers: a warp writes 16 features of
// a token, whole sectors in bf16.
//
// Weights take the product's M side and tokens its N side, so that the token tile can be as wide as
// the rows need: 3 x 192 for 560 rows leaves 3 % unused where tiles of 128 rows leave 13 %. A block
// owns 64 features for each of its one or two math warpgroups x kTokens; one warp feeds them. With one
// there are twice as many blocks, for products whose rows make one tile of tokens. The blocks of a cluster
// share a token tile: each fetches a part of it for all. Persistent over tiles: the next tile is under way
// while the gate of this one is computed. Letting the second warpgroup start a tile some blocks of K behind
// the first gained nothing on an H200, nor did clusters of four, of which fewer than a whole round are
// resident there.
// needs K a multiple of 128 bytes, F a multiple of a cluster's features; grid of clusters, 128 threads
// and 128 for each math warpgroup
// bound: 4 M F K flop
#include <type_traits>

#include "../common/activation.cuh"
#include "../common/cluster.cuh"
#include "../common/memory.cuh"
#include "../common/pdl.cuh"
#include "../common/quantise.cuh"
#include "../common/tile_copy.cuh"
#include "../common/vector.cuh"
#include "../common/warps.cuh"
#include "../common/wgmma.cuh"

namespace flashrt {
namespace glu_sm90 {

template <class T, bool kSilu_, int kTokens_, int kDepth_, int kStages_, int kCluster_, int kConsumers_>
struct Layout {
  using Element = T;
  static constexpr bool kSilu = kSilu_;
  static constexpr int kConsumers = kConsumers_;  // warpgroups that compute
  static constexpr int kFeatures = 64 * kConsumers;
  static constexpr bool kNarrow = sizeof(T) == 1;
  static constexpr int kTokens = kTokens_, kDepth = kDepth_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kRowBytes = kDepth * sizeof(T);  // one swizzled row
  static constexpr int kWeightBytes = 2 * kFeatures * kRowBytes;
  // Tokens that one block of a cluster fetches. The parts may overlap; both then bring the same bytes.
  static constexpr int kShare = (kTokens / 8 + kCluster - 1) / kCluster * 8;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kRowBytes;
  static constexpr int kFilled = kWeightBytes + kCluster * kShare * kRowBytes;
  static constexpr int kBarriers = kStages * kStageBytes;
  static constexpr int kBytes = kBarriers + 2 * kStages * 8;
  static_assert(kBytes <= 232448, "shared memory of a block");
};

#ifdef FLASHRT_SM90A

template <int kStages>
struct Ring {
  uint32_t full, empty;  // addresses of kStages barriers each
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

struct Work {
  int tiles, token_tiles, blocks;  // tiles of the whole cluster; K / 64
  int first, step;                 // cluster id, clusters
};

struct Maps {
  const CUtensorMap &x, &weight;
};

template <class L>
__device__ __forceinline__ void produce(const Maps& maps, const Work& work, Ring<L::kStages> ring,
                                        uint32_t memory, uint32_t rank) {
  const int start = min(static_cast<int>(rank) * L::kShare, L::kTokens - L::kShare);
  const auto fetch_weights = [&](int tile, int block) {
    const uint32_t full = ring.full + ring.stage * 8, stage = memory + ring.stage * L::kStageBytes;
    barrier_wait(ring.empty + ring.stage * 8, ring.phase ^ 1);
    barrier_expect(full, L::kFilled);
    const int feature = (tile / work.token_tiles * L::kCluster + rank) * L::kFeatures;
    copy_tile_4d(maps.weight, stage, full, block * L::kDepth, feature / 16);
  };
  const auto fetch_tokens = [&](int tile, int block, int stage) {
    const uint32_t target = memory + stage * L::kStageBytes + L::kWeightBytes + start * L::kRowBytes;
    const int row = tile % work.token_tiles * L::kTokens + start;
    const uint32_t full = ring.full + stage * 8;
    if constexpr (L::kCluster == 1) {
      copy_tile(maps.x, target, full, block * L::kDepth, row);
    } else {
      copy_tile_to(maps.x, target, full, block * L::kDepth, row, (1 << L::kCluster) - 1);
    }
  };
  // Weights of the first stages before the wait; they are the only thing nobody wrote just now.
  const int ahead = min(work.blocks, L::kStages);
  if (work.first < work.tiles) {
    for (int block = 0; block < ahead; ++block) {
      fetch_weights(work.first, block);
      ring.advance();
    }
  }
  pdl_wait();
  if (work.first < work.tiles) {
    for (int block = 0; block < ahead; ++block) fetch_tokens(work.first, block, block);
  }
  for (int tile = work.first; tile < work.tiles; tile += work.step) {
    for (int block = tile == work.first ? ahead : 0; block < work.blocks; ++block) {
      fetch_weights(tile, block);
      fetch_tokens(tile, block, ring.stage);
      ring.advance();
    }
  }
}

// What E4M3 is scaled by: nothing else is read in bf16.
struct Scales {
  const float *x, *weight, *out;
};

// Of a thread's two features: the exponent of an accumulator a is a (linear + cubic a^2), and the
// product of both accumulators is worth `product`. Of E4M3 alone.
struct Factors {
  float linear[2], cubic[2], product[2];
};

template <class L>
__device__ __forceinline__ Factors load_factors(const Scales& scales, int feature) {
  Factors factors = {};
  if constexpr (L::kNarrow) {
    const float4 rows = *reinterpret_cast<const float4*>(scales.weight + 2 * feature);
    const float x = *scales.x, gate[2] = {x * rows.x, x * rows.z}, up[2] = {x * rows.y, x * rows.w};
    const float out = store_factor<typename L::Element>(scales.out);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      factors.linear[i] = (L::kSilu ? kSiluLinear : kGeluLinear) * gate[i];
      if constexpr (!L::kSilu) factors.cubic[i] = kGeluCubic * gate[i] * gate[i] * gate[i];
      factors.product[i] = gate[i] * up[i] * out;
    }
  }
  return factors;
}

// act(gate) * up of a feature (0 or 1) of two tokens. One division serves both; the exponent is
// bounded so that its product stays finite, where the activation has long become 0.
template <class L>
__device__ __forceinline__ float2 gate_two(const float* gate, const float* up, const Factors& factors,
                                           int feature) {
  float grown[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float exponent = L::kSilu ? kSiluLinear * gate[i] : gelu_exponent(gate[i]);
    if constexpr (L::kNarrow && L::kSilu) {
      exponent = gate[i] * factors.linear[feature];
    } else if constexpr (L::kNarrow) {
      const float slope = factors.linear[feature] + factors.cubic[feature] * gate[i] * gate[i];
      exponent = gate[i] * slope;
    }
    grown[i] = 1.0f + exp2_flushed(fminf(exponent, 60.0f));
  }
  float inverse = reciprocal_flushed(grown[0] * grown[1]);
  if constexpr (L::kNarrow) inverse *= factors.product[feature];
  return {gate[0] * up[0] * (grown[1] * inverse), gate[1] * up[1] * (grown[0] * inverse)};
}

// Rounds two neighbouring features of a token and stores them at a global address.
template <class L>
__device__ __forceinline__ void store_pair(uint64_t global, float low, float high) {
  if constexpr (L::kNarrow) {
    store_at(global, quantise2(low, high));
  } else {
    store_at(global, pack2(low, high));
  }
}

// `out` is the thread's first: two features of the first of its tokens, of which there are `tokens`
// from there on to the end of the tile.
template <class L, int kTokens = L::kTokens>
__device__ __forceinline__ void store(const float (&gate)[kTokens / 2], const float (&up)[kTokens / 2],
                                      const Factors& factors, typename L::Element* out, int out_stride,
                                      int tokens) {
  const uint32_t row = out_stride * sizeof(typename L::Element);
  uint64_t place = __cvta_generic_to_global(out);
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const float2 low = gate_two<L>(&gate[4 * j], &up[4 * j], factors, 0);
    const float2 high = gate_two<L>(&gate[4 * j + 2], &up[4 * j + 2], factors, 1);
    if (8 * j < tokens) store_pair<L>(place, low.x, high.x);
    if (8 * j + 1 < tokens) store_pair<L>(place + row, low.y, high.y);
    place += 8 * row;
    settle_sum(place);  // a sum: the compiler would multiply anew for each j
  }
}

template <class L>
__device__ __forceinline__ void release(const Ring<L::kStages>& ring, int stage) {
  const uint32_t thread = threadIdx.x % 128;
  if (thread < L::kCluster) barrier_arrive_at(ring.empty + stage * 8, thread);
}

template <class L>
__device__ __forceinline__ void consume(const Work& work, Ring<L::kStages> ring, uint32_t memory,
                                        typename L::Element* out, const Scales& scales, int rows,
                                        int out_stride, uint32_t rank) {
  constexpr int kTokens = L::kTokens, kRowBytes = L::kRowBytes;
  const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int tile = work.first; tile < work.tiles; tile += work.step) {
    float gate[kTokens / 2], up[kTokens / 2];
    int released = ring.stage;
    for (int block = 0; block < work.blocks; ++block) {
      barrier_wait(ring.full + ring.stage * 8, ring.phase);
      const uint32_t stage = memory + ring.stage * L::kStageBytes;
      // Eight gate rows, eight up rows, and so on.
      const uint64_t a = wgmma_tile<kRowBytes>(stage + group * 128 * kRowBytes, 16 * kRowBytes);
      const uint64_t b = wgmma_tile<kRowBytes>(stage + L::kWeightBytes);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < kRowBytes / 32; ++k) {
        const int keep = block > 0 || k > 0;
        const uint64_t other = wgmma_step(a, k) + (8 * kRowBytes >> 4);
        if constexpr (L::kNarrow) {
          WgmmaE4m3<kTokens>::run(gate, wgmma_step(a, k), wgmma_step(b, k), keep);
          WgmmaE4m3<kTokens>::run(up, other, wgmma_step(b, k), keep);
        } else {
          Wgmma<kTokens>::run(gate, wgmma_step(a, k), wgmma_step(b, k), keep);
          Wgmma<kTokens>::run(up, other, wgmma_step(b, k), keep);
        }
      }
      wgmma_commit();
      if (block > 0) {
        wgmma_wait<1>();
        release<L>(ring, released);
      }
      released = ring.stage;
      ring.advance();
    }
    // A thread's first token and its two features.
    const int token = tile % work.token_tiles * kTokens + lane % 4 * 2;
    const int feature = (tile / work.token_tiles * L::kCluster + rank) * L::kFeatures + group * 64 +
                        warp * 16 + lane / 4 * 2;
    const Factors factors = load_factors<L>(scales, feature);
    wgmma_wait<0>();
    release<L>(ring, released);
    store<L>(gate, up, factors, out + static_cast<size_t>(token) * out_stride + feature, out_stride,
             min(kTokens - lane % 4 * 2, rows - token));
  }
}

template <class L>
__device__ __forceinline__ void run(const Maps& maps, typename L::Element* out,
                                    const Scales& scales, int rows, int depth, int features,
                                    int out_stride) {
  extern __shared__ __align__(1024) unsigned char glu_memory[];
  const uint32_t memory = shared_address(glu_memory);
  const uint32_t rank = L::kCluster == 1 ? 0 : cluster_rank();
  Ring<L::kStages> ring;
  ring.full = memory + L::kBarriers;
  ring.empty = ring.full + L::kStages * 8;
  if (threadIdx.x == 0) {
    prefetch_map(maps.x);
    prefetch_map(maps.weight);
    for (int stage = 0; stage < L::kStages; ++stage) {
      barrier_init(ring.full + stage * 8, 1);
      barrier_init(ring.empty + stage * 8, L::kConsumers * L::kCluster);
    }
    barrier_init_fence();
  }
  cluster_arrive();
  cluster_wait();
  Work work;
  work.token_tiles = (rows + L::kTokens - 1) / L::kTokens;
  work.tiles = work.token_tiles * (features / (L::kFeatures * L::kCluster));
  work.blocks = depth / L::kDepth;
  work.first = blockIdx.x / L::kCluster;
  work.step = gridDim.x / L::kCluster;
  if (threadIdx.x < 128) {
    if constexpr (L::kConsumers > 1) give_registers<40>();
    if (threadIdx.x == 0) produce<L>(maps, work, ring, memory, rank);
  } else {
    if constexpr (L::kConsumers > 1) take_registers<232>();
    // The output may still be read by what runs before; every warp waits, not only the fetching one.
    pdl_wait();
    consume<L>(work, ring, memory, out, scales, rows, out_stride, rank);
  }
  // No block may leave while the other still writes to it or signals it.
  cluster_arrive();
  cluster_wait();
}

#endif

}  // namespace glu_sm90
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_GLU(gate, kSilu, suffix, T, kTokens, kDepth, kStages, kCluster, kConsumers)         \
  extern "C" __global__ void __launch_bounds__(128 + 128 * kConsumers, 1)                          \
      __cluster_dims__(kCluster, 1, 1)                                                             \
      glu_linear_##gate##_##kTokens##_##kDepth##_##kStages##_##kCluster##_##suffix##_sm90(         \
          const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,       \
          T* out, const float* x_scale, const float* weight_scale, const float* out_scale,         \
          int rows, int depth, int features, int out_stride) {                                     \
    flashrt::pdl_trigger();                                                                        \
    using L = flashrt::glu_sm90::Layout<T, kSilu, kTokens, kDepth, kStages, kCluster, kConsumers>; \
    flashrt::glu_sm90::run<L>({x, weight}, out, {x_scale, weight_scale, out_scale}, rows, depth,   \
                              features, out_stride);                                               \
  }
FLASHRT_GLU(gelu_tanh, false, bf16, flashrt::bf16, 152, 64, 4, 2, 2)
FLASHRT_GLU(gelu_tanh, false, bf16, flashrt::bf16, 192, 64, 4, 2, 2)
FLASHRT_GLU(gelu_tanh, false, bf16, flashrt::bf16, 200, 64, 3, 2, 2)
FLASHRT_GLU(gelu_tanh, false, fp8, flashrt::e4m3, 152, 128, 4, 2, 2)
FLASHRT_GLU(gelu_tanh, false, fp8, flashrt::e4m3, 192, 128, 4, 2, 2)
FLASHRT_GLU(gelu_tanh, false, fp8, flashrt::e4m3, 200, 128, 3, 2, 2)
FLASHRT_GLU(silu, true, bf16, flashrt::bf16, 96, 64, 7, 1, 1)
FLASHRT_GLU(silu, true, bf16, flashrt::bf16, 152, 64, 4, 2, 2)
FLASHRT_GLU(silu, true, bf16, flashrt::bf16, 160, 64, 6, 1, 1)
FLASHRT_GLU(silu, true, fp8, flashrt::e4m3, 96, 128, 7, 1, 1)
FLASHRT_GLU(silu, true, fp8, flashrt::e4m3, 152, 128, 4, 2, 2)
FLASHRT_GLU(silu, true, fp8, flashrt::e4m3, 160, 128, 6, 1, 1)
#undef FLASHRT_GLU
#endif
