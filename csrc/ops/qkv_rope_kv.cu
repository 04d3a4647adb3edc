// qkv_rope_kv: splits merged rows [q | k | v], turns q and k by their rotary angles, writes all three
// qkv [M, (Hq + 2 Hkv) d] bf16; rope [M, d] float32, cosines of the d/2 angles then their sines;
// q [M, Hq d], k, v [M, Hkv d] bf16; strides in elements; Hq may be 0 (keys and values only)
// half-split pairing: column i of a head turns with column i + d/2; float32, one rounding
// needs d % 16 == 0, 16-byte aligned rows; one block a row
// bound: memory, 4 M (Hq + 2 Hkv) d + 4 M d bytes
#include "../common/pdl.cuh"
#include "../common/vector.cuh"

using namespace flashrt;

extern "C" __global__ void __launch_bounds__(1024)
    qkv_rope_kv_bf16(const bf16* qkv, const float* rope, bf16* q, bf16* k, bf16* v, int q_heads,
                     int kv_heads, int head_dim, int qkv_stride, int rope_stride, int q_stride,
                     int k_stride, int v_stride) {
  pdl_trigger();
  const size_t row = blockIdx.x;
  const int half = head_dim / 2, vectors = half / 8;  // vectors of eight angles a head
  const bf16* source = qkv + row * qkv_stride;
  const float* angles = rope + row * rope_stride;
  const int turned = (q_heads + kv_heads) * vectors;
  const int total = turned + 2 * kv_heads * vectors;
  pdl_wait();
  for (int item = threadIdx.x; item < total; item += blockDim.x) {
    if (item >= turned) {  // values: copied as they are
      const int column = (item - turned) * 8;
      const uint4* from =
          reinterpret_cast<const uint4*>(source + (q_heads + kv_heads) * head_dim + column);
      *reinterpret_cast<uint4*>(v + row * v_stride + column) = *from;
      continue;
    }
    const int head = item / vectors, column = item % vectors * 8;
    float first[8], second[8], cosine[8], sine[8], left[8], right[8];
    load8(source + head * head_dim + column, first);
    load8(source + head * head_dim + half + column, second);
    load8(angles + column, cosine);
    load8(angles + half + column, sine);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      left[i] = first[i] * cosine[i] - second[i] * sine[i];
      right[i] = second[i] * cosine[i] + first[i] * sine[i];
    }
    bf16* target = head < q_heads ? q + row * q_stride + head * head_dim
                                  : k + row * k_stride + (head - q_heads) * head_dim;
    store8(target + column, left);
    store8(target + half + column, right);
  }
}
