// As csrc/common/memory.cuh: there are no caches here.
#pragma once

#include <cstdint>

#include "mma.cuh"
#include "vector.cuh"

namespace flashrt {

// By bytes, wherever p is aligned to those; what an instruction wants is checked.
template <class T>
inline T fetched(const void* p) {
  const bool aligned = reinterpret_cast<uint64_t>(p) % sizeof(T) == 0;
  if (!aligned) emulator::fail("a load of %zu bytes from %p", sizeof(T), p);
  T v;
  std::memcpy(&v, p, sizeof(T));
  return v;
}
template <class T>
inline void stored(void* p, const T& v) {
  const bool aligned = reinterpret_cast<uint64_t>(p) % sizeof(T) == 0;
  if (!aligned) emulator::fail("a store of %zu bytes to %p", sizeof(T), p);
  std::memcpy(p, &v, sizeof(T));
}

inline uint4 load_weights(const bf16* p) { return fetched<uint4>(p); }
inline uint2 load_weights(const int8_t* p) { return fetched<uint2>(p); }
inline void load_fresh(uint4& v, const bf16* p, bool keep) {
  if (keep) v = fetched<uint4>(p);
}
inline void load_fresh(uint2& v, const bf16* p, bool keep) {
  if (keep) v = fetched<uint2>(p);
}
inline uint2 load_fresh2(const bf16* p) { return fetched<uint2>(p); }
inline uint32_t load_fresh1(const bf16* p) { return fetched<uint32_t>(p); }
inline float4 load_fresh4(const float* p) { return fetched<float4>(p); }
inline float2 load_fresh2(const float* p) { return fetched<float2>(p); }
inline float load_fresh(const float* p) { return fetched<float>(p); }

inline void store_if(bool keep, bf16* p, uint32_t v) {
  if (keep) stored(p, v);
}
inline void store_shared_if(bool keep, float* p, float2 v) {
  if (keep) std::memcpy(emulator::shared_memory(shared_address(p), 8, "st.shared", 8), &v, 8);
}
inline void store_shared_if(bool keep, float* p, float v) {
  if (keep) std::memcpy(emulator::shared_memory(shared_address(p), 4, "st.shared", 4), &v, 4);
}
inline void clear_shared16(uint32_t at) {
  std::memset(emulator::shared_memory(at, 16, "st.shared", 16), 0, 16);
}

template <class T>
inline void load_at(uint64_t from, T& v) {
  v = fetched<T>(reinterpret_cast<const void*>(from));
}
template <class T>
inline void store_at(uint64_t to, T v) {
  stored(reinterpret_cast<void*>(to), v);
}
struct OneByte {
  uint16_t held;
};
inline void load_at(uint64_t from, OneByte& v) { v.held = *reinterpret_cast<const uint8_t*>(from); }
inline void store_at(uint64_t to, OneByte v) { *reinterpret_cast<uint8_t*>(to) = static_cast<uint8_t>(v.held); }

}  // namespace flashrt
