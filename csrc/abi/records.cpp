// The functions of flashrt.h that tell what there is.
#include "records.hpp"

#include <cstdio>

namespace flashrt {
namespace {

// Checks what all of them have in common; `fill` gets the engine and makes today's record.
template <typename Record, typename Fill>
flashrt_status record(flashrt_session *session, Record *out, const char *name, const Fill &fill) {
  const Call calling(session);
  Engine *engine = nullptr;
  FLASHRT_TRY(calling.engine(engine));
  if (out == nullptr) return fail(FLASHRT_E_ARGUMENT, "%s: expected a place for it, got null", name);
  FLASHRT_TRY(check_size(out->struct_size, kFirstSize<Record>, name));
  Record own{};
  FLASHRT_TRY(fill(*engine, own));
  give(own, out);
  return FLASHRT_OK;
}

flashrt_status check_index(const char *what, uint32_t index, uint32_t count) {
  if (index < count) return FLASHRT_OK;
  return fail(FLASHRT_E_INDEX, "%s %u: expected one of %u", what, index, count);
}

// The record at `index` of the shape in use, as regions are numbered.
const flashrt_region *region_at(const flashrt_handover &plan, uint32_t shape, uint32_t index) {
  for (uint32_t at = 0; at < plan.regions; ++at) {
    if (plan.region[at].shape == shape && index-- == 0) return &plan.region[at];
  }
  return nullptr;
}

uint32_t region_count(const flashrt_handover &plan, uint32_t shape) {
  uint32_t count = 0;
  for (uint32_t at = 0; at < plan.regions; ++at) count += plan.region[at].shape == shape;
  return count;
}

const char *name_at(const Engine &engine, uint32_t seat, uint32_t kind, uint32_t index) {
  const flashrt_handover &plan = engine.plan();
  switch (kind) {
    case FLASHRT_KIND_BUFFER: return index < plan.buffers ? plan.buffer[index].name : nullptr;
    case FLASHRT_KIND_INPUT: return index < plan.inputs ? plan.input[index].name : nullptr;
    case FLASHRT_KIND_OUTPUT: return index < plan.outputs ? plan.output[index].name : nullptr;
    case FLASHRT_KIND_STAGE: return index < plan.stages ? plan.stage[index].name : nullptr;
    default: {
      const flashrt_region *region = region_at(plan, engine.seat(seat).held.shape, index);
      return region != nullptr ? region->name : nullptr;
    }
  }
}

}  // namespace
}  // namespace flashrt

using flashrt::Engine;
using flashrt::record;

extern "C" {

flashrt_status flashrt_get_info(flashrt_session *session, flashrt_info *out) {
  return record(session, out, "flashrt_info", [&](Engine &engine, flashrt_info &own) -> flashrt_status {
    std::lock_guard<std::mutex> guard(engine.lock());
    const flashrt_handover &plan = engine.plan();
    own.abi_version = FLASHRT_ABI_VERSION;
    own.device = plan.device;
    own.streams = 1;
    own.shapes = plan.shapes;
    own.graphs = plan.programs;
    own.buffers = plan.buffers;
    own.inputs = plan.inputs;
    own.outputs = plan.outputs;
    own.stages = plan.stages;
    own.regions = flashrt::region_count(plan, engine.seat(session->seat).held.shape);
    own.slots = plan.slots;
    for (uint32_t seat = 0; seat < plan.seats; ++seat) own.sessions += engine.seat(seat).used != 0;
    own.max_sessions = plan.seats;
    own.working_sets = plan.sets;
    own.policy = plan.policy;
    own.switches = plan.switches;
    own.moved_bytes = plan.moved_bytes;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_fingerprint(flashrt_session *session, flashrt_fingerprint *out) {
  return record(session, out, "flashrt_fingerprint", [](Engine &engine, flashrt_fingerprint &own) -> flashrt_status {
    std::snprintf(own.digest, sizeof own.digest, "%s", engine.plan().digest);
    own.identity = engine.plan().identity;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_state(flashrt_session *session, flashrt_state *out) {
  return record(session, out, "flashrt_state", [&](Engine &engine, flashrt_state &own) -> flashrt_status {
    std::lock_guard<std::mutex> guard(engine.lock());
    const flashrt_seat &seat = engine.seat(session->seat);
    own.shape = seat.held.shape;
    own.working_set = seat.working_set;
    own.resident = engine.plan().resident[seat.working_set] == session->seat;
    own.decisions = seat.held.decisions;
    std::memcpy(own.name, seat.name, sizeof own.name);
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_stream(flashrt_session *session, uint32_t index, flashrt_stream *out) {
  return record(session, out, "flashrt_stream", [&](Engine &engine, flashrt_stream &own) -> flashrt_status {
    FLASHRT_TRY(flashrt::check_index("stream", index, 1));
    own.device = engine.plan().device;
    own.handle = engine.plan().stream;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_graph(flashrt_session *session, uint32_t index, flashrt_graph *out) {
  return record(session, out, "flashrt_graph", [&](Engine &engine, flashrt_graph &own) -> flashrt_status {
    const flashrt_handover &plan = engine.plan();
    FLASHRT_TRY(flashrt::check_index("graph", index, plan.programs));
    own = plan.program[engine.seat(session->seat).working_set * plan.programs + index].graph;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_buffer(flashrt_session *session, uint32_t index, flashrt_buffer *out) {
  return record(session, out, "flashrt_buffer", [&](Engine &engine, flashrt_buffer &own) -> flashrt_status {
    const flashrt_handover &plan = engine.plan();
    FLASHRT_TRY(flashrt::check_index("buffer", index, plan.buffers));
    own = plan.buffer[engine.seat(session->seat).working_set * plan.buffers + index];
    return FLASHRT_OK;
  });
}

#define FLASHRT_TABLE(kind, field, count)                                                                      \
  flashrt_status flashrt_get_##kind(flashrt_session *session, uint32_t index, flashrt_##kind *out) {           \
    return record(session, out, "flashrt_" #kind, [&](Engine &engine, flashrt_##kind &own) -> flashrt_status {                   \
      FLASHRT_TRY(flashrt::check_index(#kind, index, engine.plan().count));                                    \
      own = engine.plan().field[index];                                                                        \
      return FLASHRT_OK;                                                                                       \
    });                                                                                                        \
  }

FLASHRT_TABLE(shape, shape, shapes)
FLASHRT_TABLE(output, output, outputs)

flashrt_status flashrt_get_input(flashrt_session *session, uint32_t index, flashrt_input *out) {
  return record(session, out, "flashrt_input", [&](Engine &engine, flashrt_input &own) -> flashrt_status {
    FLASHRT_TRY(flashrt::check_index("input", index, engine.plan().inputs));
    own = engine.plan().input[index];
    const flashrt_range range = engine.range(session->seat, index);
    own.lowest = range.lowest, own.highest = range.highest;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_stage(flashrt_session *session, uint32_t index, flashrt_stage *out) {
  return record(session, out, "flashrt_stage", [&](Engine &engine, flashrt_stage &own) -> flashrt_status {
    const flashrt_handover &plan = engine.plan();
    FLASHRT_TRY(flashrt::check_index("stage", index, plan.stages));
    own = plan.stage[index];
    std::lock_guard<std::mutex> guard(engine.lock());
    own.validity = engine.validity(session->seat, index);
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_region(flashrt_session *session, uint32_t index, flashrt_region *out) {
  return record(session, out, "flashrt_region", [&](Engine &engine, flashrt_region &own) -> flashrt_status {
    const uint32_t shape = engine.seat(session->seat).held.shape;
    const flashrt_region *found = flashrt::region_at(engine.plan(), shape, index);
    if (found == nullptr) {
      return flashrt::fail(FLASHRT_E_INDEX, "region %u: expected one of the %u of the shape in use", index,
                           flashrt::region_count(engine.plan(), shape));
    }
    own = *found;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_get_slot(flashrt_session *session, uint32_t index, flashrt_slot *out) {
  return record(session, out, "flashrt_slot", [&](Engine &engine, flashrt_slot &own) -> flashrt_status {
    FLASHRT_TRY(flashrt::check_index("slot", index, engine.plan().slots));
    std::lock_guard<std::mutex> guard(engine.lock());
    own = engine.plan().shelf[index].slot;
    return FLASHRT_OK;
  });
}

flashrt_status flashrt_find(flashrt_session *session, uint32_t kind, const char *name, uint32_t *index) {
  const flashrt::Call calling(session);
  Engine *engine = nullptr;
  FLASHRT_TRY(calling.engine(engine));
  if (name == nullptr || index == nullptr) {
    return flashrt::fail(FLASHRT_E_ARGUMENT, "find: expected a name and a place for the index, got null");
  }
  if (kind < FLASHRT_KIND_BUFFER || kind > FLASHRT_KIND_SLOT) {
    return flashrt::fail(FLASHRT_E_ARGUMENT, "find: expected a FLASHRT_KIND, got %u", kind);
  }
  if (kind == FLASHRT_KIND_SLOT) {
    std::lock_guard<std::mutex> guard(engine->lock());
    *index = engine->find_shelf(name);
    if (*index != FLASHRT_NONE) return FLASHRT_OK;
  } else {
    for (uint32_t at = 0; const char *found = flashrt::name_at(*engine, session->seat, kind, at); ++at) {
      if (std::strcmp(found, name) != 0) continue;
      *index = at;
      return FLASHRT_OK;
    }
  }
  return flashrt::fail(FLASHRT_E_INDEX, "find: expected the name of a record of kind %u, got '%.100s'", kind, name);
}

}  // extern "C"
