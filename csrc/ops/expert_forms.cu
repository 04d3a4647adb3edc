// Other forms of the products of pi0.5's expert: the same sums in the same op, by another kernel, to be
// measured against each other in whole decisions (kernels/expert_forms.py names them). None is a default.
//
// All ask for `bytes` at `next` into L2, the weight of a product further on; null: for nothing. A block of
// 256 threads takes half of a multiprocessor, so of those that do (80 of qkv and of attention, 128 of the
// others) two kernels in a row always fit. _parts: blocks of 128 threads, a quarter of one each, where
// a kernel would have 256 blocks. _whole: a block makes whole sums of few rows of W, so that nothing is
// pushed to neighbours.
#include "../common/direct_product_sm90.cuh"
#include "ada_rms_norm_geglu.cu"
#include "ada_rms_norm_qkv_rope_kv.cu"
#include "linear_gated_residual.cu"

#if defined(FLASHRT_SM90A) || !defined(__CUDA_ARCH__)
namespace flashrt {

using AskQkv14Bf16 = SkinnyShape<1, 10, 1, 1, 8, 4, From::kRegisters, 0, true, bf16, true>;
static_assert(AskQkv14Bf16::kSharedBytes == 51552, "as the launcher has it");
using AskOut16Bf16 = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false, bf16, true>;
static_assert(AskOut16Bf16::kSharedBytes == 12336, "as the launcher has it");
using WholeOut16Bf16 = SkinnyShape<1, 1, 8, 1, 8, 1, From::kRegisters, 0, false, bf16, true>;
static_assert(WholeOut16Bf16::kSharedBytes == 4112, "as the launcher has it");
using AskGeglu14Bf16 = SkinnyShape<1, 8, 4, 1, 8, 1, From::kBulk, 8, true, bf16, true>;
static_assert(AskGeglu14Bf16::kSharedBytes == 137808, "as the launcher has it");
using PartGeglu14Bf16 = SkinnyShape<1, 4, 8, 1, 4, 1, From::kBulk, 4, true, bf16, true>;
static_assert(PartGeglu14Bf16::kSharedBytes == 69936, "as the launcher has it");
using AskDown16Bf16 = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false, bf16, true>;
static_assert(AskDown16Bf16::kSharedBytes == 22576, "as the launcher has it");

using AskQkv14I8 = SkinnyShape<1, 8, 2, 1, 8, 2, From::kRegisters, 0, true, int8_t, true>;
static_assert(AskQkv14I8::kSharedBytes == 42704, "as the launcher has it");
using WholeQkv14I8 = SkinnyShape<1, 2, 4, 1, 8, 1, From::kRegisters, 0, true, int8_t, true>;
static_assert(WholeQkv14I8::kSharedBytes == 14880, "as the launcher has it");
using AskOut16I8 = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false, int8_t, true>;
static_assert(AskOut16I8::kSharedBytes == 12336, "as the launcher has it");
using WholeOut16I8 = SkinnyShape<1, 1, 8, 1, 8, 1, From::kRegisters, 0, false, int8_t, true>;
static_assert(WholeOut16I8::kSharedBytes == 4112, "as the launcher has it");
using AskGeglu14I8 = SkinnyShape<1, 8, 4, 1, 8, 1, From::kBulk, 8, true, int8_t, true>;
static_assert(AskGeglu14I8::kSharedBytes == 70224, "as the launcher has it");
using PartGeglu14I8 = SkinnyShape<1, 4, 8, 1, 4, 1, From::kBulk, 4, true, int8_t, true>;
static_assert(PartGeglu14I8::kSharedBytes == 36144, "as the launcher has it");
using AskDown16I8 = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false, int8_t, true>;
static_assert(AskDown16I8::kSharedBytes == 22576, "as the launcher has it");
using Down16By2I8 = SkinnyShape<1, 2, 8, 1, 8, 2, From::kBulk, 2, false, int8_t, true>;
static_assert(Down16By2I8::kSharedBytes == 34336, "as the launcher has it");

}  // namespace flashrt
#endif

#ifdef FLASHRT_SM90A
#define FLASHRT_ASKING_QKV(name, Shape, blocks)                                                    \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const flashrt::Shape::Weight* weight, const float* weight_scale, const float* rope,     \
           flashrt::bf16* q, flashrt::bf16* k, flashrt::bf16* v, int tokens, int heads,            \
           int x_stride, int rope_stride, int q_stride, int kv_stride, float eps,                  \
           const void* next, int bytes) {                                                          \
    if (threadIdx.x == flashrt::Shape::kThreads - 1 && next) flashrt::ask_share(next, bytes);      \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, scale, shift, eps, tokens, x_stride},                   \
        flashrt::QkvRope<flashrt::Shape>{q, k, v, rope, heads, q_stride, kv_stride, rope_stride,   \
                                         {}, {}});                                                 \
  }
#define FLASHRT_ASKING_GEGLU(name, Shape, blocks)                                                  \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const flashrt::Shape::Weight* weight, const float* weight_scale, flashrt::bf16* y,      \
           int tokens, int x_stride, int y_stride, float eps, const void* next, int bytes) {       \
    if (threadIdx.x == flashrt::Shape::kThreads - 1 && next) flashrt::ask_share(next, bytes);      \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, scale, shift, eps, tokens, x_stride},                   \
        flashrt::Geglu<flashrt::Shape>{{}, y, y_stride});                                          \
  }
#define FLASHRT_ASKING_RESIDUAL(name, Shape, blocks)                                               \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const flashrt::Shape::Weight* weight,                           \
           const float* weight_scale, const float* gate, flashrt::bf16* y, int tokens,             \
           int x_stride, int y_stride, const void* next, int bytes) {                              \
    if (threadIdx.x == flashrt::Shape::kThreads - 1 && next) flashrt::ask_share(next, bytes);      \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, x_stride},              \
        flashrt::GatedResidual<flashrt::Shape>{{}, y, gate, y_stride, {}, {}});                    \
  }

FLASHRT_ASKING_QKV(ada_rms_norm_qkv_rope_kv_14_bf16_asking_hopper, AskQkv14Bf16, 2)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k2048_16_bf16_asking_hopper, AskOut16Bf16, 4)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k2048_16_bf16_whole_hopper, WholeOut16Bf16, 2)
FLASHRT_ASKING_GEGLU(ada_rms_norm_geglu_14_bf16_asking_hopper, AskGeglu14Bf16, 2)
FLASHRT_ASKING_GEGLU(ada_rms_norm_geglu_14_bf16_parts_hopper, PartGeglu14Bf16, 3)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k4096_16_bf16_asking_hopper, AskDown16Bf16, 2)
FLASHRT_ASKING_QKV(ada_rms_norm_qkv_rope_kv_14_i8_asking_hopper, AskQkv14I8, 2)
FLASHRT_ASKING_QKV(ada_rms_norm_qkv_rope_kv_14_i8_whole_hopper, WholeQkv14I8, 2)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k2048_16_i8_asking_hopper, AskOut16I8, 4)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k2048_16_i8_whole_hopper, WholeOut16I8, 2)
FLASHRT_ASKING_GEGLU(ada_rms_norm_geglu_14_i8_asking_hopper, AskGeglu14I8, 2)
FLASHRT_ASKING_GEGLU(ada_rms_norm_geglu_14_i8_parts_hopper, PartGeglu14I8, 3)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k4096_16_i8_asking_hopper, AskDown16I8, 2)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k4096_16_i8_by_2_asking_hopper, Down16By2I8, 2)
FLASHRT_ASKING_QKV(ada_rms_norm_qkv_rope_kv_54_i8_asking_hopper, Qkv54I8Sm90, 2)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k2048_56_i8_asking_hopper, Out56I8Sm90, 2)
FLASHRT_ASKING_GEGLU(ada_rms_norm_geglu_54_i8_asking_hopper, Geglu54I8Sm90, 2)
FLASHRT_ASKING_RESIDUAL(linear_gated_residual_k4096_56_i8_asking_hopper, Down56I8Sm90, 2)
#endif
