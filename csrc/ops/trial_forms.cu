// Other forms of kernels that there are: the same sums in the same op, by another kernel, to be measured
// against each other in whole decisions (kernels/forms.py names them). None is a default.
//
// _early: tiles that the ring has no room for are asked for into L2 before pdl_wait(), and blocks begin at
// different steps. _direct: x goes from L2 into registers, the ring is for W alone (packed as
// direct_product_sm90.cuh says). by_2, by_6: clusters of so few blocks that all are placed at once, whatever
// is on the multiprocessors already. _short: one tile of keys a warp.
#include "../common/direct_product_sm90.cuh"
#include "attention_heads.cu"
#include "few_rows_linear.cu"
#include "layer_norm_attention.cu"

#if defined(FLASHRT_SM90A) || !defined(__CUDA_ARCH__)
namespace flashrt {

using EarlyNorm24By2 = StreamedShape<24, 12, 2, 8, true, 48, false, true, true>;
static_assert(EarlyNorm24By2::kSharedBytes == 88208, "as the launcher has it");
using EarlyNorm48By4 = StreamedShape<48, 6, 4, 6, true, 48, false, true, true>;
static_assert(EarlyNorm48By4::kSharedBytes == 90176, "as the launcher has it");
using EarlyNorm72By2 = StreamedShape<72, 12, 2, 4, true, 48, false, true, true>;
static_assert(EarlyNorm72By2::kSharedBytes == 85872, "as the launcher has it");
using EarlyNorm96By2 = StreamedShape<96, 12, 2, 4, true, 48, false, true, true>;
static_assert(EarlyNorm96By2::kSharedBytes == 103152, "as the launcher has it");
using Early24By2 = StreamedShape<24, 12, 2, 8, false, 48, false, true, true>;
static_assert(Early24By2::kSharedBytes == 78416, "as the launcher has it");
using Early48By4 = StreamedShape<48, 6, 4, 6, false, 48, false, true, true>;
static_assert(Early48By4::kSharedBytes == 83008, "as the launcher has it");
using Early96By6 = StreamedShape<96, 16, 6, 4, false, 48, false, true, true>;
static_assert(Early96By6::kSharedBytes == 92208, "as the launcher has it");
using Early96By8 = StreamedShape<96, 12, 8, 4, false, 48, false, true, true>;
static_assert(Early96By8::kSharedBytes == 92208, "as the launcher has it");
using EarlyContext = NormAttentionShape<1, 6, heads::Shape<48, 1, 8>, true, true>;
static_assert(EarlyContext::kSharedBytes == 121760, "as the launcher has it");
using EarlySelf = NormAttentionShape<3, 2, heads::Shape<48, 1, 4, 3>, true, true>;
static_assert(EarlySelf::kSharedBytes == 121664, "as the launcher has it");

using DirectNorm24By2 = DirectShape<24, 12, 2, 12, true, 3>;
static_assert(DirectNorm24By2::kSharedBytes == 51568, "as the launcher has it");
using DirectNorm48By4 = DirectShape<48, 6, 4, 6, true, 3>;
static_assert(DirectNorm48By4::kSharedBytes == 53504, "as the launcher has it");
using DirectNorm72By2 = DirectShape<72, 12, 2, 6, true, 2>;
static_assert(DirectNorm72By2::kSharedBytes == 79936, "as the launcher has it");
using DirectNorm96By2 = DirectShape<96, 12, 2, 6, true, 2>;
static_assert(DirectNorm96By2::kSharedBytes == 103360, "as the launcher has it");
using Direct24By2 = DirectShape<24, 12, 2, 12, false, 3>;
static_assert(Direct24By2::kSharedBytes == 41584, "as the launcher has it");
using Direct48By4 = DirectShape<48, 6, 4, 6, false, 3>;
static_assert(Direct48By4::kSharedBytes == 46144, "as the launcher has it");
using Direct96By6 = DirectShape<96, 16, 6, 6, false, 2>;
static_assert(Direct96By6::kSharedBytes == 92224, "as the launcher has it");
using Direct96By8 = DirectShape<96, 12, 8, 6, false, 2>;
static_assert(Direct96By8::kSharedBytes == 92224, "as the launcher has it");
using Direct96By8Deep = DirectShape<96, 12, 8, 8, false, 2, bf16, 44>;
static_assert(Direct96By8Deep::kSharedBytes == 115280, "as the launcher has it");
using DirectNorm24By2I8 = DirectShape<24, 12, 2, 12, true, 2, int8_t>;
static_assert(DirectNorm24By2I8::kSharedBytes == 39280, "as the launcher has it");
using DirectNorm72By2I8 = DirectShape<72, 12, 2, 12, true, 1, int8_t>;
static_assert(DirectNorm72By2I8::kSharedBytes == 98416, "as the launcher has it");
using DirectNorm96By2I8 = DirectShape<96, 12, 2, 8, true, 1, int8_t>;
static_assert(DirectNorm96By2I8::kSharedBytes == 103376, "as the launcher has it");
using Direct24By2I8 = DirectShape<24, 12, 2, 12, false, 3, int8_t>;
static_assert(Direct24By2I8::kSharedBytes == 29296, "as the launcher has it");
using Direct96By6I8 = DirectShape<96, 16, 6, 10, false, 1, int8_t>;
static_assert(Direct96By6I8::kSharedBytes == 104544, "as the launcher has it");
using Direct96By8I8 = DirectShape<96, 12, 8, 10, false, 1, int8_t>;
static_assert(Direct96By8I8::kSharedBytes == 104544, "as the launcher has it");

using HeadsShort48 = heads::Shape<48, 1, 4, 0, false, 1, true>;
static_assert(HeadsShort48::kSharedBytes == 14336, "as the launcher has it");

}  // namespace flashrt
#endif

#ifdef FLASHRT_SM90A
#define FLASHRT_EARLY_NORM_LINEAR(name, Shape)                                                     \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           int tokens, int y_stride, int activation, float eps) {                                  \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x},                     \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, nullptr, y_stride, 0,                      \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_EARLY_LINEAR(name, Shape)                                                          \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const flashrt::bf16* bias, const flashrt::bf16* residual, flashrt::bf16* y, int tokens, \
           int y_stride, int residual_stride, int activation) {                                    \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, nullptr, nullptr, 0.0f, tokens, 0, &x},               \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, residual, y_stride, residual_stride,       \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_EARLY_ATTENTION(name, Shape)                                                       \
  extern "C" __global__ void __launch_bounds__(256, 1) name(                                       \
      const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,           \
      const float* gain, const float* shift, const flashrt::bf16* bias, const flashrt::bf16* k,    \
      const flashrt::bf16* v, const int* prefix_length, flashrt::bf16* out, int tokens, int keys,  \
      int prefix_rows, int kept, int k_stride, int v_stride, int out_stride, float eps,            \
      float scale) {                                                                               \
    flashrt::NoFinish op;                                                                          \
    flashrt::NormAttention<flashrt::Shape>(                                                        \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x}, op)                 \
        .run({nullptr, k, v, prefix_length, tokens, keys, prefix_rows, 0, k_stride, v_stride, 1,   \
              0, scale * 1.4426950408889634f},                                                     \
             bias, out, out_stride, kept);                                                         \
  }
#define FLASHRT_DIRECT_NORM_LINEAR(name, Shape)                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const __grid_constant__ CUtensorMap weight,                     \
           const float* weight_scale, const float* gain, const float* shift,                       \
           const flashrt::bf16* bias, flashrt::bf16* y, int tokens, int x_stride, int y_stride,    \
           int activation, float eps, const __grid_constant__ CUtensorMap next, int rows,          \
           int split, int steps) {                                                                 \
    using Out = flashrt::LinearOut<flashrt::Shape>;                                                \
    Out out{{}, y, bias, nullptr, y_stride, 0, activation, {}, {}};                                \
    flashrt::DirectProduct<flashrt::Shape, Out>(                                                   \
        {x, nullptr, weight_scale, &weight, gain, shift, eps, tokens, x_stride, &weight}, out)     \
        .run({&next, rows, split, steps});                                                         \
  }
#define FLASHRT_DIRECT_LINEAR(name, Shape)                                                         \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const __grid_constant__ CUtensorMap weight,                     \
           const float* weight_scale, const flashrt::bf16* bias, const flashrt::bf16* residual,    \
           flashrt::bf16* y, int tokens, int x_stride, int y_stride, int residual_stride,          \
           int activation, const __grid_constant__ CUtensorMap next, int rows, int split,          \
           int steps) {                                                                            \
    using Out = flashrt::LinearOut<flashrt::Shape>;                                                \
    Out out{{}, y, bias, residual, y_stride, residual_stride, activation, {}, {}};                 \
    flashrt::DirectProduct<flashrt::Shape, Out>(                                                   \
        {x, nullptr, weight_scale, &weight, nullptr, nullptr, 0.0f, tokens, x_stride, &weight},    \
        out)                                                                                       \
        .run({&next, rows, split, steps});                                                         \
  }
// With int8 weights in registers, whose blocks leave no room for the next kernel's: they ask for `bytes`
// of its weights.
#define FLASHRT_ASKING_NORM_LINEAR(name, Shape)                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const int8_t* weight, const float* weight_scale,                \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           int tokens, int x_stride, int y_stride, int activation, float eps, const void* next,    \
           int bytes) {                                                                            \
    if (threadIdx.x == 255 && next) flashrt::ask_share(next, bytes);                               \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, gain, shift, eps, tokens, x_stride},                    \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, nullptr, y_stride, 0,                      \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_ASKING_LINEAR(name, Shape)                                                         \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const int8_t* weight, const float* weight_scale,                \
           const flashrt::bf16* bias, const flashrt::bf16* residual, flashrt::bf16* y, int tokens, \
           int x_stride, int y_stride, int residual_stride, int activation, const void* next,      \
           int bytes) {                                                                            \
    if (threadIdx.x == 255 && next) flashrt::ask_share(next, bytes);                               \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, x_stride},              \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, residual, y_stride, residual_stride,       \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_SHORT_HEADS(name, Shape)                                                           \
  extern "C" __global__ void __launch_bounds__(128)                                                \
      name(const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v,                 \
           flashrt::bf16* out, const float* out_scale, const int* prefix_length, int rows_run,     \
           int keys_run, int prefix_rows, int group, int causal, int kept, int q_stride,           \
           int k_stride, int v_stride, int out_stride, float scale) {                              \
    flashrt::heads::attend<flashrt::Shape>(                                                        \
        {q, k, v, prefix_length, rows_run, keys_run, prefix_rows, q_stride, k_stride, v_stride,    \
         group, causal, scale * 1.4426950408889634f},                                              \
        out, out_scale, out_stride, kept);                                                         \
  }

FLASHRT_EARLY_NORM_LINEAR(layer_norm_linear_k1536_24_by_2_early_bf16_sm90, EarlyNorm24By2)
FLASHRT_EARLY_NORM_LINEAR(layer_norm_linear_k1536_48_by_4_early_bf16_sm90, EarlyNorm48By4)
FLASHRT_EARLY_NORM_LINEAR(layer_norm_linear_k1536_72_by_2_early_bf16_sm90, EarlyNorm72By2)
FLASHRT_EARLY_NORM_LINEAR(layer_norm_linear_k1536_96_by_2_early_bf16_sm90, EarlyNorm96By2)
FLASHRT_EARLY_LINEAR(linear_k1536_24_by_2_early_bf16_sm90, Early24By2)
FLASHRT_EARLY_LINEAR(linear_k1536_48_by_4_early_bf16_sm90, Early48By4)
FLASHRT_EARLY_LINEAR(linear_k6144_96_by_6_early_bf16_sm90, Early96By6)
FLASHRT_EARLY_LINEAR(linear_k6144_96_by_8_early_bf16_sm90, Early96By8)
FLASHRT_EARLY_ATTENTION(layer_norm_attention_k1536_d48_early_bf16_sm90, EarlyContext)
FLASHRT_EARLY_ATTENTION(layer_norm_attention_self_k1536_d48_early_bf16_sm90, EarlySelf)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_24_by_2_direct_bf16_sm90, DirectNorm24By2)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_48_by_4_direct_bf16_sm90, DirectNorm48By4)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_72_by_2_direct_bf16_sm90, DirectNorm72By2)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_96_by_2_direct_bf16_sm90, DirectNorm96By2)
FLASHRT_DIRECT_LINEAR(linear_k1536_24_by_2_direct_bf16_sm90, Direct24By2)
FLASHRT_DIRECT_LINEAR(linear_k1536_48_by_4_direct_bf16_sm90, Direct48By4)
FLASHRT_DIRECT_LINEAR(linear_k6144_96_by_6_direct_bf16_sm90, Direct96By6)
FLASHRT_DIRECT_LINEAR(linear_k6144_96_by_8_direct_bf16_sm90, Direct96By8)
FLASHRT_DIRECT_LINEAR(linear_k6144_96_by_8_deep_bf16_sm90, Direct96By8Deep)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_24_by_2_direct_i8_sm90, DirectNorm24By2I8)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_72_by_2_direct_i8_sm90, DirectNorm72By2I8)
FLASHRT_DIRECT_NORM_LINEAR(layer_norm_linear_k1536_96_by_2_direct_i8_sm90, DirectNorm96By2I8)
FLASHRT_DIRECT_LINEAR(linear_k1536_24_by_2_direct_i8_sm90, Direct24By2I8)
FLASHRT_DIRECT_LINEAR(linear_k6144_96_by_6_direct_i8_sm90, Direct96By6I8)
FLASHRT_DIRECT_LINEAR(linear_k6144_96_by_8_direct_i8_sm90, Direct96By8I8)
FLASHRT_ASKING_NORM_LINEAR(layer_norm_linear_k1536_by_2_asking_i8_sm90, NormLinear1536By2I8)
FLASHRT_ASKING_NORM_LINEAR(layer_norm_linear_k1536_by_4_asking_i8_sm90, NormLinear1536By4I8)
FLASHRT_ASKING_LINEAR(linear_k1536_by_4_asking_i8_sm90, Linear1536By4I8)
FLASHRT_ASKING_LINEAR(linear_k6144_by_8_asking_i8_sm90, Linear6144By8I8)
FLASHRT_SHORT_HEADS(attention_heads_d48_short_bf16_hopper, HeadsShort48)
#endif
