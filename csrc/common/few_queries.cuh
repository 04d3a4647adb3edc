// What the kernels of attention with few queries are given (see attention_few_queries.cu).
#pragma once

#include "vector.cuh"

namespace flashrt {

struct FewQueriesArgs {
  const bf16 *q, *k, *v;
  bf16* out;
  const int* prefix_length;
  int rows, prefix_rows, own_rows, kv_stride;  // rows of the list of queries
  float scale_log2;
};

}  // namespace flashrt
