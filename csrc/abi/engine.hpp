// One plan's buffers, captured graphs, sessions and capsules, as Python handed them over.
//
// A seat is a session's record; seats, shelves (capsule slots) and residents are Python's memory and are
// worked on in place. What a session writes waits in a block of its own until its next replay, so a
// session keeps its inputs when another one uses the buffers in between.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device.hpp"
#include "ledger.hpp"

namespace flashrt {
class Engine;
}

// What a host holds. It outlives the engine, so that a late call gets a code and not a fault.
struct flashrt_session {
  std::atomic<flashrt::Engine *> engine;
  uint32_t seat;
  std::atomic<uint32_t> calls;  // under way
};

namespace flashrt {

class Engine {
 public:
  static flashrt_status begin(flashrt_handover *plan, std::unique_ptr<Engine> &out);
  ~Engine();

  // With the lock held.
  flashrt_status open(uint32_t seat, flashrt_session **out);
  flashrt_status end();

  // Calls of one session; each takes the lock where it touches what sessions share.
  flashrt_status select_shape(uint32_t seat, uint32_t shape);
  flashrt_status write(uint32_t seat, uint32_t input, const uint8_t *data, uint64_t bytes);
  flashrt_status run(uint32_t seat, uint32_t stage, uint32_t flags, flashrt_report *report);
  flashrt_status decide(uint32_t seat, flashrt_report *report);
  flashrt_status act(uint32_t seat, uint32_t flags, flashrt_report *report);
  flashrt_status read(uint32_t seat, uint32_t output, uint32_t flags, uint8_t *data, uint64_t bytes) const;

  flashrt_status snapshot(uint32_t seat, const char *name);
  flashrt_status restore(uint32_t seat, const char *name);
  flashrt_status drop(const char *name);
  static flashrt_status fork(Engine &from, uint32_t seat, const char *capsule, Engine &to, const char *name,
                             flashrt_session **out);
  flashrt_status close(flashrt_session *handle);

  const flashrt_handover &plan() const { return plan_; }
  std::mutex &lock() { return lock_; }
  const flashrt_seat &seat(uint32_t index) const { return plan_.seat[index]; }
  // Of an input, in the shape that a session uses.
  flashrt_range range(uint32_t seat, uint32_t input) const;
  uint32_t find_shelf(const char *name) const;
  uint32_t validity(uint32_t seat, uint32_t stage) const { return ledger(seat).validity(stage); }

 private:
  // Of a seat, beside its record: values on their way, and results that came back.
  struct Desk {
    uint8_t *inputs = nullptr;
    uint8_t *outputs = nullptr;
    uint64_t pending = 0;  // bit i: input i waits for its way to the device
    uint64_t vouched = 0;  // bit i: written again with the bytes that the retained result was made from
    uint64_t fetched = 0;  // bit i: output i is here
    uint64_t lengths[FLASHRT_MAX_INPUTS] = {};
  };
  class Use;  // the device, entered

  explicit Engine(flashrt_handover &plan) : plan_(plan) {}

  // No handle is of use any more; waits for calls that are under way.
  void retire();
  flashrt_status prepare();
  flashrt_status claim(uint32_t seat, Desk &desk);
  void lay_out();
  Ledger ledger(uint32_t seat) const { return Ledger(plan_, plan_.seat[seat]); }
  const flashrt_buffer &buffer(uint32_t seat, uint32_t index) const {
    return plan_.buffer[plan_.seat[seat].working_set * plan_.buffers + index];
  }

  // All below with the lock held.
  // Makes a session the one whose state the buffers of its set hold: its own, or that of a capsule.
  flashrt_status admit(uint32_t seat, uint32_t shelf = FLASHRT_NONE);
  void bring_vouched(uint32_t seat, uint64_t inputs);
  flashrt_status send(uint32_t seat);
  flashrt_status replay(uint32_t seat, uint64_t stages, flashrt_report *report);
  // Regions of a seat's buffers to a place, or back. Places: parking slots of the seats, then shelves.
  flashrt_status move(uint32_t seat, uint32_t shape, uint32_t place, bool to_slot);
  uint32_t shelved(uint32_t shelf) const { return plan_.seats + shelf; }
  flashrt_status finish(uint32_t seat, flashrt_report *report);
  void keep_staged(uint32_t seat, uint32_t transform);
  flashrt_status take_shelf(uint32_t seat, const char *name, uint32_t &out) const;
  uint64_t slot_bytes(uint32_t shape) const;
  void copy_staged(uint8_t *to, const uint8_t *from) const;

  flashrt_handover &plan_;
  std::unique_ptr<Device> device_;
  mutable std::mutex lock_;
  std::mutex handles_lock_;
  bool retired_ = false;
  std::vector<Desk> desks_;
  std::vector<flashrt_session *> handles_;
  std::vector<uint32_t> order_;        // inputs by address
  std::vector<uint64_t> input_place_;  // in a desk's block, apart as on the device where neighbours
  std::vector<uint64_t> output_place_;
  std::vector<uint64_t> staged_place_;
  std::vector<uint8_t> joined_;        // order_[i] follows order_[i - 1] without anything between
  uint64_t input_bytes_ = 0, output_bytes_ = 0, staged_bytes_ = 0;
};

// A call of a host, as long as it takes: whoever takes the sessions back waits for it.
class Call {
 public:
  explicit Call(flashrt_session *session) : session_(session) {
    if (session_ != nullptr) ++session_->calls;  // first: who retires the handle then looks for it
  }
  ~Call() {
    if (session_ != nullptr) --session_->calls;
  }
  Call(const Call &) = delete;
  Call &operator=(const Call &) = delete;
  // E_ARGUMENT or E_CLOSED where there is no engine.
  flashrt_status engine(Engine *&out) const;

 private:
  flashrt_session *session_;
};

// Text of printable ASCII with something visible in it, below FLASHRT_NAME_BYTES.
flashrt_status check_name(flashrt_status code, const char *what, const char *name);

// Enters the device for as long as it lives; status() says whether that went well.
class Engine::Use {
 public:
  explicit Use(Engine &engine) : device_(*engine.device_), status_(device_.enter()) {}
  ~Use() {
    if (status_ == FLASHRT_OK) device_.leave();
  }
  Use(const Use &) = delete;
  Use &operator=(const Use &) = delete;
  flashrt_status status() const { return status_; }

 private:
  Device &device_;
  flashrt_status status_;
};

}  // namespace flashrt
