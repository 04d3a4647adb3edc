// As csrc/common/pdl.cuh. A launch begins here when the one before it is complete.
#pragma once

namespace flashrt {

inline void pdl_wait() {}
inline void pdl_trigger() {}

}  // namespace flashrt
