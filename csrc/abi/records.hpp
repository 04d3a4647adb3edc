// How records reach callers that were compiled with an older or a newer header.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "engine.hpp"
#include "status.hpp"

namespace flashrt {

// Bytes of a record in version 1: what every caller's struct has at least. Numbers on purpose: they
// stay when fields are appended.
template <typename Record>
constexpr uint32_t kFirstSize = 0;
template <> inline constexpr uint32_t kFirstSize<flashrt_info> = 88;
template <> inline constexpr uint32_t kFirstSize<flashrt_fingerprint> = 88;
template <> inline constexpr uint32_t kFirstSize<flashrt_stream> = 16;
template <> inline constexpr uint32_t kFirstSize<flashrt_shape> = 20;
template <> inline constexpr uint32_t kFirstSize<flashrt_graph> = 24;
template <> inline constexpr uint32_t kFirstSize<flashrt_buffer> = 104;
template <> inline constexpr uint32_t kFirstSize<flashrt_input> = 120;
template <> inline constexpr uint32_t kFirstSize<flashrt_output> = 104;
template <> inline constexpr uint32_t kFirstSize<flashrt_stage> = 48;
template <> inline constexpr uint32_t kFirstSize<flashrt_region> = 48;
template <> inline constexpr uint32_t kFirstSize<flashrt_slot> = 560;
template <> inline constexpr uint32_t kFirstSize<flashrt_state> = 280;
template <> inline constexpr uint32_t kFirstSize<flashrt_report> = 96;

inline flashrt_status check_size(uint32_t size, uint32_t first, const char *record) {
  if (size >= first) return FLASHRT_OK;
  return fail(FLASHRT_E_STRUCT_SIZE, "%s.struct_size: expected at least %u, got %u; set it to sizeof the record", record,
              first, size);
}

// Fills what both sides know, and says how much that is.
template <typename Record>
void give(Record &own, Record *out) {
  static_assert(kFirstSize<Record> > 0 && kFirstSize<Record> <= sizeof(Record), "records only grow");
  static_assert(offsetof(Record, struct_size) == 0, "first in every record");
  own.struct_size = std::min<uint32_t>(out->struct_size, sizeof(Record));
  std::memcpy(out, &own, own.struct_size);
}

}  // namespace flashrt
