// The functions of flashrt.h that act: arguments checked, then the engine's.
#include <cstring>

#include "engine.hpp"
#include "records.hpp"
#include "status.hpp"

namespace flashrt {

flashrt_status Call::engine(Engine *&out) const {
  if (session_ == nullptr) return fail(FLASHRT_E_ARGUMENT, "session: expected a handle, got null");
  out = session_->engine.load();
  return out != nullptr ? FLASHRT_OK
                        : fail(FLASHRT_E_CLOSED, "session: expected an open handle, got one that was closed or taken back");
}

namespace {

flashrt_status check_flags(uint32_t flags) {
  if ((flags & ~uint32_t{FLASHRT_ALLOW_STALE}) == 0) return FLASHRT_OK;
  return fail(FLASHRT_E_ARGUMENT, "flags: expected 0 or FLASHRT_ALLOW_STALE, got 0x%X", flags);
}

// Runs `call` with a report of today's size, and gives the caller the part that its header knows.
template <typename Call>
flashrt_status reported(flashrt_report *out, const Call &call) {
  if (out == nullptr) return call(static_cast<flashrt_report *>(nullptr));
  FLASHRT_TRY(check_size(out->struct_size, kFirstSize<flashrt_report>, "flashrt_report"));
  flashrt_report own{};
  const flashrt_status status = call(&own);
  give(own, out);
  return status;
}

}  // namespace
}  // namespace flashrt

using flashrt::Engine;

#define FLASHRT_ENGINE(name)             \
  const flashrt::Call calling(session); \
  Engine *name = nullptr;                \
  FLASHRT_TRY(calling.engine(name))

extern "C" {

flashrt_status flashrt_select_shape(flashrt_session *session, uint32_t shape) {
  FLASHRT_ENGINE(engine);
  return engine->select_shape(session->seat, shape);
}

flashrt_status flashrt_write_input(flashrt_session *session, uint32_t input, const void *data, uint64_t bytes) {
  FLASHRT_ENGINE(engine);
  return engine->write(session->seat, input, static_cast<const uint8_t *>(data), bytes);
}

flashrt_status flashrt_run_stage(flashrt_session *session, uint32_t stage, uint32_t flags, flashrt_report *report) {
  FLASHRT_ENGINE(engine);
  FLASHRT_TRY(flashrt::check_flags(flags));
  return flashrt::reported(report, [&](flashrt_report *own) { return engine->run(session->seat, stage, flags, own); });
}

flashrt_status flashrt_decide(flashrt_session *session, flashrt_report *report) {
  FLASHRT_ENGINE(engine);
  return flashrt::reported(report, [&](flashrt_report *own) { return engine->decide(session->seat, own); });
}

flashrt_status flashrt_act(flashrt_session *session, uint32_t flags, flashrt_report *report) {
  FLASHRT_ENGINE(engine);
  FLASHRT_TRY(flashrt::check_flags(flags));
  return flashrt::reported(report, [&](flashrt_report *own) { return engine->act(session->seat, flags, own); });
}

flashrt_status flashrt_read_output(flashrt_session *session, uint32_t output, void *data, uint64_t bytes) {
  FLASHRT_ENGINE(engine);
  return engine->read(session->seat, output, 0, static_cast<uint8_t *>(data), bytes);
}

flashrt_status flashrt_read_output_flags(flashrt_session *session, uint32_t output, uint32_t flags, void *data,
                                         uint64_t bytes) {
  FLASHRT_ENGINE(engine);
  FLASHRT_TRY(flashrt::check_flags(flags));
  return engine->read(session->seat, output, flags, static_cast<uint8_t *>(data), bytes);
}

flashrt_status flashrt_snapshot(flashrt_session *session, const char *name) {
  FLASHRT_ENGINE(engine);
  return engine->snapshot(session->seat, name);
}

flashrt_status flashrt_restore(flashrt_session *session, const char *name) {
  FLASHRT_ENGINE(engine);
  return engine->restore(session->seat, name);
}

flashrt_status flashrt_drop(flashrt_session *session, const char *name) {
  FLASHRT_ENGINE(engine);
  return engine->drop(name);
}

flashrt_status flashrt_fork(flashrt_session *session, const char *capsule, flashrt_session *into, const char *name,
                            flashrt_session **out) {
  FLASHRT_ENGINE(engine);
  Engine *target = engine;
  const flashrt::Call there(into);
  if (into != nullptr) FLASHRT_TRY(there.engine(target));
  return Engine::fork(*engine, session->seat, capsule, *target, name, out);
}

flashrt_status flashrt_close(flashrt_session *session) {
  FLASHRT_ENGINE(engine);
  return engine->close(session);
}

}  // extern "C"
