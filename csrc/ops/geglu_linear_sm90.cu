// geglu_linear: out = gelu_tanh(x Wg^T) * (x Wu^T), one kernel for product and gate (sm_90a)
// x [M, K], weight [2F, K] (row 2i gate, 2i + 1 up), out [M, F] bf16 row-major; float32 accumulation
// and gate, one rounding. x, the gate rows and the up rows come as tile maps of 64 columns (128-byte
// swizzle): the maps of gate and up skip every other row of weight, so the two lie apart in shared
// memory, and gate and up of a feature in the same register of the same thread.
//
// Weights take the product's M side and tokens its N side, so that the token tile can be as wide as
// the rows need: 3 x 192 for 560 rows leaves 3 % unused where tiles of 128 rows leave 13 %. A block
// owns 128 features x kTokens, two math warpgroups of 64 features each; one warp feeds them. Two
// blocks of a cluster share a token tile: each fetches half of it for both. Persistent over tiles: the
// next tile is under way while the gate of this one is computed.
// needs K % 64 == 0, F % 128 == 0; grid of clusters, 384 threads
// bound: 4 M F K flop
#include "../common/activation.cuh"
#include "../common/cluster.cuh"
#include "../common/pdl.cuh"
#include "../common/tile_copy.cuh"
#include "../common/vector.cuh"
#include "../common/wgmma.cuh"

namespace flashrt {
namespace geglu_sm90 {

constexpr int kFeatures = 128, kThreads = 384;
constexpr int kConsumers = 2;       // warpgroups that compute
constexpr int kStagingBytes = 256;  // 8 tokens x 16 features of a warp

template <int kTokens_, int kDepth_, int kStages_, int kCluster_>
struct Layout {
  static constexpr int kTokens = kTokens_, kDepth = kDepth_, kStages = kStages_, kCluster = kCluster_;
  static constexpr int kRowBytes = kDepth * 2;  // one swizzled row
  static constexpr int kGateBytes = kFeatures * kRowBytes;
  static constexpr int kWeightBytes = 2 * kGateBytes;
  // Tokens that one block of a pair fetches. The halves may overlap by eight rows; both then bring
  // the same bytes.
  static constexpr int kShare = kCluster == 1 ? kTokens : (kTokens / 8 + 1) / 2 * 8;
  static constexpr int kStageBytes = kWeightBytes + kTokens * kRowBytes;
  static constexpr int kFilled = kWeightBytes + kCluster * kShare * kRowBytes;
  static constexpr int kStaging = kStages * kStageBytes;
  static constexpr int kBarriers = kStaging + kConsumers * 4 * kStagingBytes;
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
  const CUtensorMap &x, &gate, &up;
};

template <class L>
__device__ __forceinline__ void produce(const Maps& maps, const Work& work, Ring<L::kStages> ring,
                                        uint32_t memory, uint32_t rank) {
  const int start = rank == 0 ? 0 : L::kTokens - L::kShare;
  const auto fetch_weights = [&](int tile, int block) {
    const uint32_t full = ring.full + ring.stage * 8, stage = memory + ring.stage * L::kStageBytes;
    barrier_wait(ring.empty + ring.stage * 8, ring.phase ^ 1);
    barrier_expect(full, L::kFilled);
    const int feature = (tile / work.token_tiles * L::kCluster + rank) * kFeatures;
    copy_tile(maps.gate, stage, full, block * L::kDepth, feature);
    copy_tile(maps.up, stage + L::kGateBytes, full, block * L::kDepth, feature);
  };
  const auto fetch_tokens = [&](int tile, int block, int stage) {
    const uint32_t target = memory + stage * L::kStageBytes + L::kWeightBytes + start * L::kRowBytes;
    const int row = tile % work.token_tiles * L::kTokens + start;
    const uint32_t full = ring.full + stage * 8;
    if constexpr (L::kCluster == 1) {
      copy_tile(maps.x, target, full, block * L::kDepth, row);
    } else {
      copy_tile_to(maps.x, target, full, block * L::kDepth, row, 3);
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

// gelu_tanh(gate) * up of two tokens, rounded. One division serves both; the exponent is bounded so
// that its product stays finite, where gelu_tanh has long become 0.
__device__ __forceinline__ uint32_t gate_pair(const float* gate, const float* up) {
  float grown[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    grown[i] = 1.0f + exp2_flushed(fminf(gelu_exponent(gate[i]), 60.0f));
  }
  const float inverse = reciprocal_flushed(grown[0] * grown[1]);
  return pack2(gate[0] * up[0] * (grown[1] * inverse), gate[1] * up[1] * (grown[0] * inverse));
}

template <int kTokens>
__device__ __forceinline__ void store(const float (&gate)[kTokens / 2], const float (&up)[kTokens / 2],
                                      bf16* out, int out_stride, int tokens, uint32_t staging,
                                      int lane) {
  // Eight tokens at a time: two 8 x 8 tiles (features 0..7 and 8..15) turned on their way through
  // shared memory, then 16 bytes of one token a lane.
  const uint32_t mine = staging + lane % 8 * 32 + lane / 8 % 2 * 16;
  const uint32_t from = staging + lane % 16 * 16;
  bf16* target = out + static_cast<size_t>(lane / 2 % 8) * out_stride + lane % 2 * 8;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
    const uint32_t first = gate_pair(&gate[4 * j], &up[4 * j]);
    const uint32_t second = gate_pair(&gate[4 * j + 2], &up[4 * j + 2]);
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(mine),
                 "r"(first), "r"(second)
                 : "memory");
    __syncwarp();
    if (lane < 16 && j * 8 + lane / 2 < tokens) {
      uint4 v;
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "r"(from)
                   : "memory");
      *reinterpret_cast<uint4*>(target + static_cast<size_t>(j) * 8 * out_stride) = v;
    }
    __syncwarp();
  }
}

template <class L>
__device__ __forceinline__ void release(const Ring<L::kStages>& ring, int stage) {
  const uint32_t thread = threadIdx.x % 128;
  if (thread < L::kCluster) barrier_arrive_at(ring.empty + stage * 8, thread);
}

template <class L>
__device__ __forceinline__ void consume(const Work& work, Ring<L::kStages> ring, uint32_t memory,
                                        bf16* out, int rows, int out_stride, uint32_t rank) {
  constexpr int kTokens = L::kTokens, kRowBytes = L::kRowBytes;
  const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint32_t staging = memory + L::kStaging + (group * 4 + warp) * kStagingBytes;
  for (int tile = work.first; tile < work.tiles; tile += work.step) {
    float gate[kTokens / 2], up[kTokens / 2];
    int released = ring.stage;
    for (int block = 0; block < work.blocks; ++block) {
      barrier_wait(ring.full + ring.stage * 8, ring.phase);
      const uint32_t stage = memory + ring.stage * L::kStageBytes;
      const uint64_t a = wgmma_tile<kRowBytes>(stage + group * 64 * kRowBytes);
      const uint64_t b = wgmma_tile<kRowBytes>(stage + L::kWeightBytes);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < L::kDepth / 16; ++k) {
        const int keep = block > 0 || k > 0;
        Wgmma<kTokens>::run(gate, wgmma_step(a, k), wgmma_step(b, k), keep);
        Wgmma<kTokens>::run(up, wgmma_step(a, k) + (L::kGateBytes >> 4), wgmma_step(b, k), keep);
      }
      wgmma_commit();
      if (block > 0) {
        wgmma_wait<1>();
        release<L>(ring, released);
      }
      released = ring.stage;
      ring.advance();
    }
    wgmma_wait<0>();
    release<L>(ring, released);
    const int token = tile % work.token_tiles * kTokens;
    const int feature = (tile / work.token_tiles * L::kCluster + rank) * kFeatures + group * 64;
    store<kTokens>(gate, up, out + static_cast<size_t>(token) * out_stride + feature + warp * 16,
                   out_stride, min(kTokens, rows - token), staging, lane);
  }
}

template <class L>
__device__ __forceinline__ void run(const Maps& maps, bf16* out, int rows, int depth, int features,
                                    int out_stride) {
  extern __shared__ __align__(1024) unsigned char geglu_memory[];
  const uint32_t memory = shared_address(geglu_memory);
  const uint32_t rank = L::kCluster == 1 ? 0 : cluster_rank();
  Ring<L::kStages> ring;
  ring.full = memory + L::kBarriers;
  ring.empty = ring.full + L::kStages * 8;
  if (threadIdx.x == 0) {
    prefetch_map(maps.x);
    prefetch_map(maps.gate);
    prefetch_map(maps.up);
    for (int stage = 0; stage < L::kStages; ++stage) {
      barrier_init(ring.full + stage * 8, 1);
      barrier_init(ring.empty + stage * 8, kConsumers * L::kCluster);
    }
    barrier_init_fence();
  }
  cluster_arrive();
  cluster_wait();
  Work work;
  work.token_tiles = (rows + L::kTokens - 1) / L::kTokens;
  work.tiles = work.token_tiles * (features / (kFeatures * L::kCluster));
  work.blocks = depth / L::kDepth;
  work.first = blockIdx.x / L::kCluster;
  work.step = gridDim.x / L::kCluster;
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) produce<L>(maps, work, ring, memory, rank);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    // The output may still be read by what runs before; every warp waits, not only the fetching one.
    pdl_wait();
    consume<L>(work, ring, memory, out, rows, out_stride, rank);
  }
  // No block may leave while the other still writes to it or signals it.
  cluster_arrive();
  cluster_wait();
}

#endif

}  // namespace geglu_sm90
}  // namespace flashrt

#ifdef FLASHRT_SM90A
#define FLASHRT_GEGLU(kTokens, kDepth, kStages, kCluster)                                          \
  extern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__(kCluster, 1, 1)            \
      geglu_linear_##kTokens##_##kDepth##_##kStages##_##kCluster##_bf16_sm90(                      \
          const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap gate,         \
          const __grid_constant__ CUtensorMap up, __nv_bfloat16* out, int rows, int depth,         \
          int features, int out_stride) {                                                          \
    flashrt::pdl_trigger();                                                                        \
    flashrt::geglu_sm90::run<flashrt::geglu_sm90::Layout<kTokens, kDepth, kStages, kCluster>>(     \
        {x, gate, up}, out, rows, depth, features, out_stride);                                    \
  }
FLASHRT_GEGLU(152, 64, 4, 2)
FLASHRT_GEGLU(192, 64, 4, 2)
FLASHRT_GEGLU(200, 64, 3, 2)
#undef FLASHRT_GEGLU
#endif
