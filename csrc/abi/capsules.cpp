// Saved state: capsules in slots, and sessions that continue from them.
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "engine.hpp"
#include "status.hpp"

namespace flashrt {

flashrt_status check_name(flashrt_status code, const char *what, const char *name) {
  if (name == nullptr) return fail(FLASHRT_E_ARGUMENT, "%s: expected text, got null", what);
  bool visible = false;
  for (size_t at = 0; name[at] != 0; ++at) {
    const auto letter = static_cast<unsigned char>(name[at]);
    if (at + 1 >= FLASHRT_NAME_BYTES) return fail(code, "%s: expected fewer than %d bytes", what, FLASHRT_NAME_BYTES);
    if (letter < 0x20 || letter > 0x7E) {
      return fail(code, "%s: expected printable ASCII, got byte 0x%02X at %zu", what, letter, at);
    }
    visible = visible || letter != ' ';
  }
  return visible ? FLASHRT_OK : fail(code, "%s: expected at least one visible character, got '%s'", what, name);
}

uint32_t Engine::find_shelf(const char *name) const {
  for (uint32_t index = 0; index < plan_.slots; ++index) {
    const flashrt_slot &slot = plan_.shelf[index].slot;
    if (slot.full != 0 && std::strcmp(slot.name, name) == 0) return index;
  }
  return FLASHRT_NONE;
}

// The slot that a capsule of that name goes to: its own, or a free one of the device.
flashrt_status Engine::take_shelf(uint32_t seat, const char *name, uint32_t &out) const {
  out = find_shelf(name);
  if (out != FLASHRT_NONE) {
    const flashrt_slot &slot = plan_.shelf[out].slot;
    if (std::strcmp(slot.session, plan_.seat[seat].name) == 0) return FLASHRT_OK;
    return fail(FLASHRT_E_CAPSULE, "capsule '%s': expected a free name, got one that session '%s' uses; choose another",
                name, slot.session);
  }
  for (out = 0; out < plan_.slots; ++out) {
    const flashrt_slot &slot = plan_.shelf[out].slot;
    if (slot.full == 0 && slot.place == FLASHRT_PLACE_DEVICE) return FLASHRT_OK;
  }
  return fail(FLASHRT_E_CAPSULE_FULL, "capsule '%s': expected a free slot of the device, got none; drop a capsule or raise "
              "capsule_slots", name);
}

flashrt_status Engine::snapshot(uint32_t index, const char *name) {
  FLASHRT_TRY(check_name(FLASHRT_E_CAPSULE, "capsule name", name));
  std::lock_guard<std::mutex> guard(lock_);
  const flashrt_seat &seat = plan_.seat[index];
  if (seat.held.shape == FLASHRT_NONE || seat.held.made == 0) {
    return fail(FLASHRT_E_NOT_MADE, "session '%s': expected a completed stage to save, got none; run one first", seat.name);
  }
  uint32_t found;
  FLASHRT_TRY(take_shelf(index, name, found));
  FLASHRT_TRY(admit(index));
  flashrt_shelf &shelf = plan_.shelf[found];
  Use use(*this);
  FLASHRT_TRY(use.status());
  shelf.slot.full = 0;  // in case the copy fails halfway
  FLASHRT_TRY(move(index, seat.held.shape, shelved(found), true));
  shelf.held = seat.held;
  ledger(index).note(shelf.held);
  copy_staged(shelf.staged_block, seat.staged_block);
  flashrt_slot &told = shelf.slot;
  told.full = 1;
  told.shape = seat.held.shape;
  told.bytes = slot_bytes(told.shape);
  told.decision = seat.held.decisions;
  told.created_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  std::snprintf(told.name, sizeof told.name, "%s", name);
  std::memcpy(told.session, seat.name, sizeof told.session);
  return FLASHRT_OK;
}

flashrt_status Engine::restore(uint32_t index, const char *name) {
  if (name == nullptr) return fail(FLASHRT_E_ARGUMENT, "capsule name: expected text, got null");
  std::lock_guard<std::mutex> guard(lock_);
  flashrt_seat &seat = plan_.seat[index];
  const uint32_t found = find_shelf(name);
  if (found == FLASHRT_NONE) return fail(FLASHRT_E_CAPSULE, "capsule '%.100s': expected one that was saved, got none", name);
  const flashrt_shelf &shelf = plan_.shelf[found];
  if (std::strcmp(shelf.slot.session, seat.name) != 0) {
    return fail(FLASHRT_E_CAPSULE, "capsule '%.100s': expected one of session '%.100s', got one of '%.100s'; fork it instead",
                name, seat.name, shelf.slot.session);
  }
  FLASHRT_TRY(admit(index, found));
  seat.held = shelf.held;
  copy_staged(seat.staged_block, shelf.staged_block);
  ledger(index).restored();
  desks_[index].pending = desks_[index].vouched = desks_[index].fetched = 0;
  return FLASHRT_OK;
}

flashrt_status Engine::drop(const char *name) {
  if (name == nullptr) return fail(FLASHRT_E_ARGUMENT, "capsule name: expected text, got null");
  std::lock_guard<std::mutex> guard(lock_);
  const uint32_t found = find_shelf(name);
  if (found == FLASHRT_NONE) return fail(FLASHRT_E_CAPSULE, "capsule '%.100s': expected one that was saved, got none", name);
  plan_.shelf[found].slot.full = 0;
  return FLASHRT_OK;
}

flashrt_status Engine::fork(Engine &from, uint32_t index, const char *capsule, Engine &to, const char *name,
                            flashrt_session **out) {
  FLASHRT_TRY(check_name(FLASHRT_E_SESSION, "session name", name));
  if (out == nullptr) return fail(FLASHRT_E_ARGUMENT, "fork: expected a place for the handle, got null");
  if (std::strcmp(from.plan_.digest, to.plan_.digest) != 0) {
    return fail(FLASHRT_E_FINGERPRINT, "fork into '%.100s': expected plan %.12s, got plan %.12s; load the same policy, weights "
                "and shapes", name, to.plan_.digest, from.plan_.digest);
  }
  const bool same = &from == &to;
  std::unique_lock<std::mutex> first(from.lock_, std::defer_lock), second(to.lock_, std::defer_lock);
  if (same) {
    first.lock();
  } else {
    std::lock(first, second);
  }
  const flashrt_shelf *shelf = nullptr;
  if (capsule != nullptr) {
    const uint32_t found = from.find_shelf(capsule);
    if (found == FLASHRT_NONE) return fail(FLASHRT_E_CAPSULE, "capsule '%.100s': expected one that was saved, got none", capsule);
    shelf = &from.plan_.shelf[found];
  }
  uint32_t chosen = FLASHRT_NONE;
  for (uint32_t other = to.plan_.seats; other-- > 0;) {
    const flashrt_seat &seat = to.plan_.seat[other];
    if (seat.used != 0 && std::strcmp(seat.name, name) == 0) {
      return fail(FLASHRT_E_SESSION, "session '%.100s': expected a name that is not taken", name);
    }
    if (seat.used == 0) chosen = other;
  }
  if (chosen == FLASHRT_NONE) {
    return fail(FLASHRT_E_SESSION_LIMIT, "session '%.100s': expected at most %u sessions, got as many already; close one or "
                "raise max_sessions", name, to.plan_.seats);
  }
  const flashrt_seat &parent = from.plan_.seat[index];
  const flashrt_held &held = shelf != nullptr ? shelf->held : parent.held;
  flashrt_seat &seat = to.plan_.seat[chosen];
  {
    // Engines have streams of their own: what is under way in the one is waited for before the other
    // writes, and the other way round.
    if (!same) {
      Use there(to);
      FLASHRT_TRY(there.status());
      FLASHRT_TRY(to.device_->wait());
    }
    if (shelf == nullptr) FLASHRT_TRY(from.admit(index));
    Use use(from);
    FLASHRT_TRY(use.status());
    if (held.made != 0) {
      // Another engine's slot is no place of this one: what lives there goes through the parking slot of
      // its session, which is free, since the session is resident.
      if (shelf == nullptr) FLASHRT_TRY(from.move(index, held.shape, same ? chosen : index, true));
      const uint64_t source = shelf != nullptr ? shelf->address : parent.parking;
      if (shelf != nullptr || !same) {
        const bool pinned = shelf != nullptr && shelf->slot.place == FLASHRT_PLACE_HOST;
        FLASHRT_TRY(from.device_->copy(seat.parking, source, from.slot_bytes(held.shape), pinned));
      }
    }
    if (!same) FLASHRT_TRY(from.device_->wait());
  }
  // The set with the fewest sessions, as Python chooses.
  uint32_t best = 0, fewest = FLASHRT_NONE;
  for (uint32_t set = 0; set < to.plan_.sets; ++set) {
    uint32_t count = 0;
    for (uint32_t other = 0; other < to.plan_.seats; ++other) {
      count += to.plan_.seat[other].used != 0 && to.plan_.seat[other].working_set == set;
    }
    if (count < fewest) best = set, fewest = count;
  }
  seat.forked = 1;
  seat.working_set = best;
  seat.clock = 0;
  seat.held = held;
  if (shelf == nullptr) from.ledger(index).note(seat.held);
  if (!same) {  // what Python's side of the other engine knows is not known here
    seat.held.origin = FLASHRT_NONE;
    seat.held.foreign = FLASHRT_FOREIGN_PROMPT | FLASHRT_FOREIGN_OBSERVATION;
    seat.held.context = FLASHRT_CONTEXT_UNKNOWN;
  }
  seat.parked = held.made != 0;
  to.copy_staged(seat.staged_block, shelf != nullptr ? shelf->staged_block : parent.staged_block);
  to.ledger(chosen).restored();
  std::snprintf(seat.name, sizeof seat.name, "%s", name);
  Desk &desk = to.desks_[chosen];
  desk.pending = desk.vouched = desk.fetched = 0;
  seat.used = 1;
  const flashrt_status status = to.open(chosen, out);
  if (status != FLASHRT_OK) seat.used = 0;
  return status;
}

flashrt_status Engine::close(flashrt_session *handle) {
  std::lock_guard<std::mutex> guard(lock_);
  flashrt_seat &seat = plan_.seat[handle->seat];
  if (seat.forked == 0) {
    return fail(FLASHRT_E_SESSION, "session '%.100s': expected one that flashrt_fork made, got one of Python; close its "
                "export there", seat.name);
  }
  uint32_t &resident = plan_.resident[seat.working_set];
  if (resident == handle->seat) resident = FLASHRT_NONE;
  seat.used = 0;
  handle->engine.store(nullptr);
  return FLASHRT_OK;
}

}  // namespace flashrt
