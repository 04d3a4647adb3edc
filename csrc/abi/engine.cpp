// Beginning and end of a handover, and whose state the buffers hold.
#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "status.hpp"

namespace flashrt {
namespace {

constexpr uint64_t kAlignment = 256;  // of every buffer, on every device

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

flashrt_status Engine::begin(flashrt_handover *plan, std::unique_ptr<Engine> &out) {
  if (plan == nullptr) return fail(FLASHRT_E_ARGUMENT, "handover: expected a plan, got null");
  if (plan->version != FLASHRT_HANDOVER_VERSION) {
    return fail(FLASHRT_E_VERSION, "handover: expected version %u, got %u; install library and package together",
                FLASHRT_HANDOVER_VERSION, plan->version);
  }
  if (plan->stages > FLASHRT_MAX_STAGES || plan->inputs > FLASHRT_MAX_INPUTS || plan->outputs > 64) {
    return fail(FLASHRT_E_ARGUMENT, "handover: expected at most %d stages, %d inputs and 64 outputs, got %u, %u and %u",
                FLASHRT_MAX_STAGES, FLASHRT_MAX_INPUTS, plan->stages, plan->inputs, plan->outputs);
  }
  std::unique_ptr<Engine> engine(new Engine(*plan));
  FLASHRT_TRY(plan->device == FLASHRT_DEVICE_CUDA ? open_cuda(*plan, engine->device_) : open_cpu(*plan, engine->device_));
  FLASHRT_TRY(engine->prepare());
  out = std::move(engine);
  return FLASHRT_OK;
}

flashrt_status Engine::prepare() {
  lay_out();
  desks_.resize(plan_.seats);
  Use use(*this);
  FLASHRT_TRY(use.status());
  for (Desk &desk : desks_) {
    FLASHRT_TRY(device_->allocate_host(std::max<uint64_t>(input_bytes_, 1), &desk.inputs));
    FLASHRT_TRY(device_->allocate_host(std::max<uint64_t>(output_bytes_, 1), &desk.outputs));
  }
  for (uint32_t set = 0; set < plan_.sets; ++set) {
    const uint32_t seat = plan_.resident[set];
    if (seat != FLASHRT_NONE) FLASHRT_TRY(claim(seat, desks_[seat]));
  }
  return device_->wait();
}

// What a resident session wrote through Python becomes its desk's.
flashrt_status Engine::claim(uint32_t seat, Desk &desk) {
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    const uint64_t bytes = plan_.input[input].bytes;
    desk.lengths[input] = bytes;
    if (plan_.seat[seat].epochs[input] == 0) continue;
    const uint64_t address = buffer(seat, plan_.input[input].buffer).address;
    FLASHRT_TRY(device_->read(desk.inputs + input_place_[input], address, bytes));
  }
  return FLASHRT_OK;
}

void Engine::lay_out() {
  const auto address = [this](uint32_t input) { return plan_.buffer[plan_.input[input].buffer].address; };
  for (uint32_t input = 0; input < plan_.inputs; ++input) order_.push_back(input);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return address(a) < address(b); });
  input_place_.resize(plan_.inputs);
  joined_.resize(plan_.inputs);
  for (size_t at = 0; at < order_.size(); ++at) {
    const uint32_t input = order_[at];
    input_place_[input] = input_bytes_;
    // Behind the one in front there is padding only: one copy may go over both.
    joined_[at] = at > 0 && address(input) == address(order_[at - 1]) + aligned(plan_.input[order_[at - 1]].bytes);
    input_bytes_ += aligned(plan_.input[input].bytes);
  }
  for (uint32_t output = 0; output < plan_.outputs; ++output) {
    output_place_.push_back(output_bytes_);
    output_bytes_ += aligned(plan_.output[output].bytes);
  }
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    staged_place_.push_back(staged_bytes_);
    if (plan_.input[input].update == FLASHRT_UPDATE_STAGED) staged_bytes_ += plan_.input[input].bytes;
  }
}

Engine::~Engine() {
  retire();
  if (device_ == nullptr || device_->enter() != FLASHRT_OK) return;
  for (Desk &desk : desks_) {
    if (desk.inputs != nullptr) device_->free_host(desk.inputs);
    if (desk.outputs != nullptr) device_->free_host(desk.outputs);
  }
  device_->leave();
}

void Engine::retire() {
  {
    std::lock_guard<std::mutex> guard(handles_lock_);  // not that of a call, which may take long
    retired_ = true;
    for (flashrt_session *handle : handles_) handle->engine.store(nullptr);
  }
  for (flashrt_session *handle : handles_) {
    while (handle->calls.load() != 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

flashrt_status Engine::open(uint32_t seat, flashrt_session **out) {
  if (out == nullptr) return fail(FLASHRT_E_ARGUMENT, "session: expected a place for the handle, got null");
  if (seat >= plan_.seats || plan_.seat[seat].used == 0) {
    return fail(FLASHRT_E_INDEX, "seat %u: expected one in use, of %u", seat, plan_.seats);
  }
  std::lock_guard<std::mutex> guard(handles_lock_);
  if (retired_) return fail(FLASHRT_E_CLOSED, "session: expected an engine that is lent, got one that is taken back");
  auto *handle = new (std::nothrow) flashrt_session{{this}, seat, {0}};
  if (handle == nullptr) return fail(FLASHRT_E_INTERNAL, "session: expected memory for a handle, got none");
  handles_.push_back(handle);
  *out = handle;
  return FLASHRT_OK;
}

flashrt_status Engine::end() {
  retire();
  std::lock_guard<std::mutex> guard(lock_);
  Use use(*this);
  flashrt_status status = use.status();
  for (uint32_t set = 0; set < plan_.sets && status == FLASHRT_OK; ++set) {
    if (plan_.resident[set] != FLASHRT_NONE) status = send(plan_.resident[set]);
  }
  if (status == FLASHRT_OK) status = device_->wait();
  for (uint32_t index = 0; index < plan_.seats; ++index) {
    flashrt_seat &seat = plan_.seat[index];
    if (seat.used == 0) continue;
    if (status != FLASHRT_OK) seat.held.made = 0;
    if (plan_.resident[seat.working_set] == index && status == FLASHRT_OK) continue;
    ledger(index).lose_windows();  // its desk goes, and nothing of it is in them
  }
  return status;
}

flashrt_status Engine::select_shape(uint32_t index, uint32_t shape) {
  if (shape >= plan_.shapes) return fail(FLASHRT_E_SHAPE, "shape %u: expected one of %u captured", shape, plan_.shapes);
  std::lock_guard<std::mutex> guard(lock_);
  flashrt_seat &seat = plan_.seat[index];
  if (seat.held.shape == shape) return FLASHRT_OK;
  FLASHRT_TRY(admit(index));
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    const flashrt_range before = range(index, input), now = plan_.range[shape * plan_.inputs + input];
    if (before.lowest == now.lowest && before.highest == now.highest) continue;
    ledger(index).tear(input);  // its value was checked by the other one
    desks_[index].pending &= ~bit(input);
  }
  seat.held.shape = shape;
  seat.held.staged = 0;
  ledger(index).forget();
  return FLASHRT_OK;
}

flashrt_range Engine::range(uint32_t seat, uint32_t input) const {
  const uint32_t shape = plan_.seat[seat].held.shape;
  if (shape == FLASHRT_NONE) return {INT64_MIN, INT64_MAX};
  return plan_.range[shape * plan_.inputs + input];
}

flashrt_status Engine::admit(uint32_t index, uint32_t shelf) {
  flashrt_seat &seat = plan_.seat[index];
  uint32_t &resident = plan_.resident[seat.working_set];
  if (resident == index && shelf == FLASHRT_NONE) return FLASHRT_OK;
  Use use(*this);
  FLASHRT_TRY(use.status());
  const bool stays = resident == index;
  if (!stays && resident != FLASHRT_NONE) {
    flashrt_seat &outgoing = plan_.seat[resident];
    if (outgoing.held.shape != FLASHRT_NONE && outgoing.held.made != 0) {
      FLASHRT_TRY(move(resident, outgoing.held.shape, resident, true));
      plan_.moved_bytes += slot_bytes(outgoing.held.shape);
      outgoing.parked = 1;
    }
    ++plan_.switches;
    resident = FLASHRT_NONE;  // in case what follows fails: then the buffers hold nobody's state
  }
  if (shelf != FLASHRT_NONE) {
    // What is parked is not brought: the capsule takes its place. Should the copy fail halfway, it is still there.
    if (stays) ledger(index).forget();
    FLASHRT_TRY(move(index, plan_.shelf[shelf].slot.shape, shelved(shelf), false));
  } else if (seat.parked != 0 && seat.held.shape != FLASHRT_NONE) {
    FLASHRT_TRY(move(index, seat.held.shape, index, false));
    plan_.moved_bytes += slot_bytes(seat.held.shape);
  }
  seat.parked = 0;
  if (stays) return FLASHRT_OK;
  resident = index;
  // What another session has overwritten is gone, as in Python: a host that decides on it again says so by writing
  // it again. What waits for its way there is not.
  const uint64_t pending = desks_[index].pending;
  ledger(index).lose_windows(pending);
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    const uint32_t transform = plan_.input[input].transform;
    if (has(pending, input) && transform != FLASHRT_NONE) bring_vouched(index, plan_.stage[transform].reads_inputs);
  }
  return FLASHRT_OK;
}

uint64_t Engine::slot_bytes(uint32_t shape) const {
  uint64_t bytes = 0;
  for (uint32_t index = 0; index < plan_.regions; ++index) {
    const flashrt_region &region = plan_.region[index];
    if (region.shape == shape) bytes += region.row_bytes * region.rows;
  }
  return bytes;
}

flashrt_status Engine::move(uint32_t seat, uint32_t shape, uint32_t place, bool to_slot) {
  const size_t places = plan_.seats + plan_.slots;
  const size_t row = (plan_.seat[seat].working_set * places + place) * plan_.shapes + shape;
  return device_->transfer(plan_.transfer[2 * row + (to_slot ? 0 : 1)]);
}

void Engine::copy_staged(uint8_t *to, const uint8_t *from) const {
  if (staged_bytes_ != 0) std::memcpy(to, from, staged_bytes_);
}

}  // namespace flashrt

extern "C" {

uint32_t flashrt_handover_sizes(uint32_t *sizes, uint32_t room) {
  const uint32_t found[] = {
      sizeof(flashrt_info),   sizeof(flashrt_fingerprint), sizeof(flashrt_stream), sizeof(flashrt_shape),
      sizeof(flashrt_graph),  sizeof(flashrt_buffer),      sizeof(flashrt_input),  sizeof(flashrt_output),
      sizeof(flashrt_stage),  sizeof(flashrt_region),      sizeof(flashrt_slot),   sizeof(flashrt_state),
      sizeof(flashrt_report), sizeof(flashrt_held),        sizeof(flashrt_seat),   sizeof(flashrt_shelf),
      sizeof(flashrt_range),  sizeof(flashrt_program),     sizeof(flashrt_piece),  sizeof(flashrt_transfer),
      sizeof(flashrt_handover)};
  const uint32_t count = sizeof found / sizeof found[0];
  for (uint32_t index = 0; sizes != nullptr && index < count && index < room; ++index) sizes[index] = found[index];
  return count;
}

flashrt_status flashrt_handover_begin(flashrt_handover *plan, flashrt_engine **out) {
  if (out == nullptr) return flashrt::fail(FLASHRT_E_ARGUMENT, "handover: expected a place for the engine, got null");
  try {
    std::unique_ptr<flashrt::Engine> engine;
    FLASHRT_TRY(flashrt::Engine::begin(plan, engine));
    *out = reinterpret_cast<flashrt_engine *>(engine.release());
    return FLASHRT_OK;
  } catch (const std::exception &error) {
    return flashrt::fail(FLASHRT_E_INTERNAL, "handover: got %s", error.what());
  }
}

flashrt_status flashrt_handover_open(flashrt_engine *engine, uint32_t seat, flashrt_session **out) {
  if (engine == nullptr) return flashrt::fail(FLASHRT_E_ARGUMENT, "handover: expected an engine, got null");
  auto *own = reinterpret_cast<flashrt::Engine *>(engine);
  std::lock_guard<std::mutex> guard(own->lock());  // hosts may be forking
  return own->open(seat, out);
}

flashrt_status flashrt_handover_end(flashrt_engine *engine) {
  if (engine == nullptr) return flashrt::fail(FLASHRT_E_ARGUMENT, "handover: expected an engine, got null");
  auto *own = reinterpret_cast<flashrt::Engine *>(engine);
  const flashrt_status status = own->end();
  delete own;
  return status;
}

}  // extern "C"
