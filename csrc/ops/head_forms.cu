// Other forms of kernels of GR00T's head: the same sums in the same op, by another kernel, to be measured
// against each other in whole decisions (kernels/forms.py names them). None is a default.
//
// _under: the moments of rows are made while the tensor cores have the product. _deep: more of W is under
// way before the kernel in front has finished, as x has stages of its own. _asking: so, and the rest
// of W is asked for into L2 behind the wait. _resident: x of
// a block all at once, where int8 weights wait in registers.
#include "../common/resident_product_sm90.cuh"
#include "few_rows_linear.cu"

#ifdef FLASHRT_SM90A
namespace flashrt {

using UnderNorm48 = StreamedShape<48, 6, 4, 6, true, 48, false, true>;
static_assert(UnderNorm48::kSharedBytes == 90176, "as the launcher has it");
using UnderNorm72 = StreamedShape<72, 12, 2, 4, true, 48, false, true>;
static_assert(UnderNorm72::kSharedBytes == 85872, "as the launcher has it");
using UnderNorm96 = StreamedShape<96, 12, 2, 4, true, 48, false, true>;
static_assert(UnderNorm96::kSharedBytes == 103152, "as the launcher has it");
using DeepNorm72 = StreamedShape<72, 12, 2, 8, true, 48, false, true, 4, true>;
static_assert(DeepNorm72::kSharedBytes == 113344, "as the launcher has it");
using DeepNorm96 = StreamedShape<96, 12, 2, 6, true, 48, false, true, 4, true>;
static_assert(DeepNorm96::kSharedBytes == 115824, "as the launcher has it");
using Deep6144x96 = StreamedShape<96, 12, 8, 6, false, 48, false, false, 4, true>;
static_assert(Deep6144x96::kSharedBytes == 114528, "as the launcher has it");
using AskingNorm72 = StreamedShape<72, 12, 2, 8, true, 48, false, true, 4, true, true>;
static_assert(AskingNorm72::kSharedBytes == 113344, "as the launcher has it");
using AskingNorm96 = StreamedShape<96, 12, 2, 6, true, 48, false, true, 4, true, true>;
static_assert(AskingNorm96::kSharedBytes == 115824, "as the launcher has it");
using Asking6144x96 = StreamedShape<96, 12, 8, 6, false, 48, false, false, 4, true, true>;
static_assert(Asking6144x96::kSharedBytes == 114528, "as the launcher has it");

// Named for K and the blocks of a cluster.
using ResidentNorm1536By2 = ResidentShape<6, 2, true>;
static_assert(ResidentNorm1536By2::kSharedBytes == 89200, "as the launcher has it");
using ResidentNorm1536By4 = ResidentShape<3, 4, true>;
static_assert(ResidentNorm1536By4::kSharedBytes == 52288, "as the launcher has it");
using ResidentNorm1536Wide = ResidentShape<6, 4, true, true>;
static_assert(ResidentNorm1536Wide::kSharedBytes == 64576, "as the launcher has it");
using Resident1536By4 = ResidentShape<3, 4, false>;
static_assert(Resident1536By4::kSharedBytes == 49216, "as the launcher has it");
using Resident6144By8 = ResidentShape<6, 8, false>;
static_assert(Resident6144By8::kSharedBytes == 86128, "as the launcher has it");

}  // namespace flashrt

#define FLASHRT_HEAD_NORM_LINEAR(name, Shape)                                                      \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           int tokens, int y_stride, int activation, float eps) {                                  \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, gain, shift, eps, tokens, 0, &x},                     \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, nullptr, y_stride, 0,                      \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_HEAD_LINEAR(name, Shape)                                                           \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap weight,      \
           const flashrt::bf16* bias, const flashrt::bf16* residual, flashrt::bf16* y, int tokens, \
           int y_stride, int residual_stride, int activation) {                                    \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, nullptr, nullptr, &weight, nullptr, nullptr, 0.0f, tokens, 0, &x},               \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, residual, y_stride, residual_stride,       \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_RESIDENT_NORM_LINEAR(name, Shape)                                                  \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap x, const int8_t* weight, const float* weight_scale, \
           const float* gain, const float* shift, const flashrt::bf16* bias, flashrt::bf16* y,     \
           int tokens, int y_stride, int activation, float eps, const void* next, int bytes) {     \
    if (threadIdx.x == 255 && next) flashrt::ask_share(next, bytes);                               \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, weight, weight_scale, nullptr, gain, shift, eps, tokens, 0, &x},                 \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, nullptr, y_stride, 0,                      \
                                           activation, {}, {}});                                   \
  }
#define FLASHRT_RESIDENT_LINEAR(name, Shape)                                                       \
  extern "C" __global__ void __launch_bounds__(256, 2)                                             \
      name(const __grid_constant__ CUtensorMap x, const int8_t* weight, const float* weight_scale, \
           const flashrt::bf16* bias, const flashrt::bf16* residual, flashrt::bf16* y, int tokens, \
           int y_stride, int residual_stride, int activation, const void* next, int bytes) {       \
    if (threadIdx.x == 255 && next) flashrt::ask_share(next, bytes);                               \
    flashrt::few_rows_product<flashrt::Shape>(                                                     \
        {nullptr, weight, weight_scale, nullptr, nullptr, nullptr, 0.0f, tokens, 0, &x},           \
        flashrt::LinearOut<flashrt::Shape>{{}, y, bias, residual, y_stride, residual_stride,       \
                                           activation, {}, {}});                                   \
  }

FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_48_under_bf16_sm90, UnderNorm48)
FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_72_under_bf16_sm90, UnderNorm72)
FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_96_under_bf16_sm90, UnderNorm96)
FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_72_deep_bf16_sm90, DeepNorm72)
FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_96_deep_bf16_sm90, DeepNorm96)
FLASHRT_HEAD_LINEAR(linear_k6144_96_deep_bf16_sm90, Deep6144x96)
FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_72_asking_bf16_sm90, AskingNorm72)
FLASHRT_HEAD_NORM_LINEAR(layer_norm_linear_k1536_96_asking_bf16_sm90, AskingNorm96)
FLASHRT_HEAD_LINEAR(linear_k6144_96_asking_bf16_sm90, Asking6144x96)
FLASHRT_RESIDENT_NORM_LINEAR(layer_norm_linear_k1536_by_2_resident_i8_sm90, ResidentNorm1536By2)
FLASHRT_RESIDENT_NORM_LINEAR(layer_norm_linear_k1536_by_4_resident_i8_sm90, ResidentNorm1536By4)
FLASHRT_RESIDENT_NORM_LINEAR(layer_norm_linear_k1536_128_resident_i8_sm90, ResidentNorm1536Wide)
FLASHRT_RESIDENT_LINEAR(linear_k1536_by_4_resident_i8_sm90, Resident1536By4)
FLASHRT_RESIDENT_LINEAR(linear_k6144_by_8_resident_i8_sm90, Resident6144By8)
#endif
