// Other forms of kernels that there are: the same sums in the same op, by another kernel, to be measured
// against each other in whole decisions (kernels/forms.py names them). None is a default.
//
// by_2: clusters of so few blocks that all are placed at once, whatever is on the multiprocessors already. _lean: waits with the scope of the block. _warm: products are
// made once before the wait, so that their code has come. _wide: warpgroup products for few tokens too, by
// fewer blocks of 64 rows.
#include "ada_rms_norm_geglu.cu"
#include "ada_rms_norm_qkv_rope_kv.cu"
#include "attention_few_queries_cluster.cu"
#include "linear_gated_residual.cu"

#if defined(FLASHRT_SM90A) || !defined(__CUDA_ARCH__)
namespace flashrt {

using LeanQkv14Bf16 = SkinnyShape<1, 10, 1, 1, 8, 4, From::kRegisters, 0, true, bf16, true, false>;
static_assert(LeanQkv14Bf16::kSharedBytes == 51552, "as the launcher has it");
using LeanOut16Bf16 = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false, bf16, true, false>;
static_assert(LeanOut16Bf16::kSharedBytes == 12336, "as the launcher has it");
using LeanGeglu14Bf16 = SkinnyShape<1, 8, 4, 1, 8, 1, From::kBulk, 8, true, bf16, true, false>;
static_assert(LeanGeglu14Bf16::kSharedBytes == 137808, "as the launcher has it");
using LeanDown16Bf16 = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false, bf16, true, false>;
static_assert(LeanDown16Bf16::kSharedBytes == 22576, "as the launcher has it");
using LeanQkv14I8 = SkinnyShape<1, 10, 1, 1, 8, 4, From::kRegisters, 0, true, int8_t, true, false>;
static_assert(LeanQkv14I8::kSharedBytes == 51552, "as the launcher has it");
using LeanOut16I8 = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false, int8_t, true, false>;
static_assert(LeanOut16I8::kSharedBytes == 12336, "as the launcher has it");
using LeanGeglu14I8 = SkinnyShape<1, 8, 4, 1, 8, 1, From::kBulk, 8, true, int8_t, true, false>;
static_assert(LeanGeglu14I8::kSharedBytes == 70224, "as the launcher has it");
using LeanDown16I8 = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false, int8_t, true, false>;
static_assert(LeanDown16I8::kSharedBytes == 22576, "as the launcher has it");
using WarmQkv14I8 = SkinnyShape<1, 10, 1, 1, 8, 4, From::kRegisters, 0, true, int8_t, true, true>;
static_assert(WarmQkv14I8::kSharedBytes == 51552, "as the launcher has it");
using WarmOut16I8 = SkinnyShape<1, 4, 4, 1, 4, 4, From::kRegisters, 0, false, int8_t, true, true>;
static_assert(WarmOut16I8::kSharedBytes == 12336, "as the launcher has it");
using WarmDown16I8 = SkinnyShape<1, 4, 4, 1, 8, 4, From::kRegisters, 0, false, int8_t, true, true>;
static_assert(WarmDown16I8::kSharedBytes == 22576, "as the launcher has it");
using Qkv14By2Bf16 = SkinnyShape<1, 8, 2, 1, 8, 2, From::kBulk, 8, true, bf16, true>;
static_assert(Qkv14By2Bf16::kSharedBytes == 75472, "as the launcher has it");
using Down16By2Bf16 = SkinnyShape<1, 2, 8, 1, 8, 2, From::kBulk, 2, false, bf16, true>;
static_assert(Down16By2Bf16::kSharedBytes == 67616, "as the launcher has it");
using Qkv14By2I8 = SkinnyShape<1, 8, 2, 1, 8, 2, From::kRegisters, 0, true, int8_t, true>;
static_assert(Qkv14By2I8::kSharedBytes == 42704, "as the launcher has it");
using Down16By2I8 = SkinnyShape<1, 2, 8, 1, 8, 2, From::kBulk, 2, false, int8_t, true>;
static_assert(Down16By2I8::kSharedBytes == 34336, "as the launcher has it");

using WideQkv14Bf16 = WarpgroupShape<16, 4, 2, From::kRegisters, 4, true, bf16, false, true>;
static_assert(WideQkv14Bf16::kSharedBytes == 16288, "as the launcher has it");
using WideOut16Bf16 = WarpgroupShape<16, 4, 4, From::kRegisters, 4, false, bf16, false, true>;
static_assert(WideOut16Bf16::kSharedBytes == 12832, "as the launcher has it");
using WideGeglu14Bf16 = WarpgroupShape<16, 8, 1, From::kBulk, 8, true, bf16, false, true>;
static_assert(WideGeglu14Bf16::kSharedBytes == 146592, "as the launcher has it");
using WideDown16Bf16 = WarpgroupShape<16, 8, 4, From::kBulk, 8, false, bf16, false, true>;
static_assert(WideDown16Bf16::kSharedBytes == 144416, "as the launcher has it");
using WideQkv14I8 = WarpgroupShape<16, 4, 2, From::kRegisters, 4, true, int8_t, false, true>;
static_assert(WideQkv14I8::kSharedBytes == 16288, "as the launcher has it");
using WideOut16I8 = WarpgroupShape<16, 4, 4, From::kRegisters, 4, false, int8_t, false, true>;
static_assert(WideOut16I8::kSharedBytes == 12832, "as the launcher has it");
using WideGeglu14I8 = WarpgroupShape<16, 8, 1, From::kRegisters, 2, true, int8_t, false, true>;
static_assert(WideGeglu14I8::kSharedBytes == 15136, "as the launcher has it");
using WideDown16I8 = WarpgroupShape<16, 8, 4, From::kRegisters, 4, false, int8_t, false, true>;
static_assert(WideDown16I8::kSharedBytes == 12832, "as the launcher has it");

}  // namespace flashrt
#endif

#ifdef FLASHRT_SM90A
#define FLASHRT_TRIAL_QKV(name, Shape)                                                             \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const flashrt::Shape::Weight* weight, const float* weight_scale, const float* rope,     \
           flashrt::bf16* q, flashrt::bf16* k, flashrt::bf16* v, int tokens, int heads,            \
           int x_stride, int rope_stride, int q_stride, int kv_stride, float eps) {                \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, scale, shift, eps, tokens, x_stride},                   \
        flashrt::QkvRope<flashrt::Shape>{q, k, v, rope, heads, q_stride, kv_stride, rope_stride,   \
                                         {}, {}});                                                 \
  }
#define FLASHRT_TRIAL_GEGLU(name, Shape)                                                           \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const flashrt::bf16* x, const float* scale, const float* shift,                         \
           const flashrt::Shape::Weight* weight, const float* weight_scale, flashrt::bf16* y,      \
           int tokens, int x_stride, int y_stride, float eps) {                                    \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, scale, shift, eps, tokens, x_stride},                   \
        flashrt::Geglu<flashrt::Shape>{{}, y, y_stride});                                          \
  }
#define FLASHRT_TRIAL_RESIDUAL(name, Shape, blocks)                                                \
  extern "C" __global__ void __launch_bounds__(flashrt::Shape::kThreads, blocks)                   \
      name(const flashrt::bf16* x, const flashrt::Shape::Weight* weight,                           \
           const float* weight_scale, const float* gate, flashrt::bf16* y, int tokens,             \
           int x_stride, int y_stride) {                                                           \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {x, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, x_stride},              \
        flashrt::GatedResidual<flashrt::Shape>{{}, y, gate, y_stride, {}, {}});                    \
  }
#define FLASHRT_LEAN_FEW_QUERIES(rows, keys, bytes)                                                \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      attention_few_queries_d256_##rows##_##keys##_bf16_lean_hopper(                            \
          const flashrt::bf16* q, const flashrt::bf16* k, const flashrt::bf16* v,                  \
          flashrt::bf16* out, const int* prefix_length, int all_rows, int prefix_rows,             \
          int own_rows, int kv_stride, float scale) {                                              \
    using Blocks = flashrt::few_queries_cluster::Shape<rows / 8, keys / 128, true>;                \
    static_assert(Blocks::kSharedBytes == bytes, "as the launcher has it");                        \
    flashrt::few_queries_cluster::FewQueries<Blocks>(                                              \
        {q, k, v, out, prefix_length, all_rows, prefix_rows, own_rows, kv_stride,                  \
         scale * 1.4426950408889634f})                                                             \
        .run();                                                                                    \
  }

FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_bf16_lean_hopper, LeanQkv14Bf16)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k2048_16_bf16_lean_hopper, LeanOut16Bf16, 4)
FLASHRT_TRIAL_GEGLU(ada_rms_norm_geglu_14_bf16_lean_hopper, LeanGeglu14Bf16)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_bf16_lean_hopper, LeanDown16Bf16, 2)
FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_bf16_by_2_hopper, Qkv14By2Bf16)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_bf16_by_2_hopper, Down16By2Bf16, 2)
FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_i8_lean_hopper, LeanQkv14I8)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k2048_16_i8_lean_hopper, LeanOut16I8, 4)
FLASHRT_TRIAL_GEGLU(ada_rms_norm_geglu_14_i8_lean_hopper, LeanGeglu14I8)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_i8_lean_hopper, LeanDown16I8, 2)
FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_i8_warm_hopper, WarmQkv14I8)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k2048_16_i8_warm_hopper, WarmOut16I8, 4)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_i8_warm_hopper, WarmDown16I8, 2)
FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_i8_by_2_hopper, Qkv14By2I8)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_i8_by_2_hopper, Down16By2I8, 2)
FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_bf16_wide_sm90, WideQkv14Bf16)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k2048_16_bf16_wide_sm90, WideOut16Bf16, 2)
FLASHRT_TRIAL_GEGLU(ada_rms_norm_geglu_14_bf16_wide_sm90, WideGeglu14Bf16)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_bf16_wide_sm90, WideDown16Bf16, 2)
FLASHRT_TRIAL_QKV(ada_rms_norm_qkv_rope_kv_14_i8_wide_sm90, WideQkv14I8)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k2048_16_i8_wide_sm90, WideOut16I8, 2)
FLASHRT_TRIAL_GEGLU(ada_rms_norm_geglu_14_i8_wide_sm90, WideGeglu14I8)
FLASHRT_TRIAL_RESIDUAL(linear_gated_residual_k4096_16_i8_wide_sm90, WideDown16I8, 2)
FLASHRT_LEAN_FEW_QUERIES(8, 640, 54160)
FLASHRT_LEAN_FEW_QUERIES(8, 1024, 78736)
#endif
