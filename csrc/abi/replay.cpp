// The hot path: inputs in, stages replayed, outputs out. Nothing here allocates.
#include <chrono>
#include <cmath>
#include <cstring>

#include "engine.hpp"
#include "status.hpp"

namespace flashrt {
namespace {

uint64_t item_bytes(uint32_t dtype) {
  switch (dtype) {
    case FLASHRT_F32: case FLASHRT_I32: return 4;
    case FLASHRT_I64: return 8;
    case FLASHRT_F16: case FLASHRT_BF16: return 2;
    default: return 1;
  }
}

// The first element that is NaN or infinite, or `count`.
uint64_t first_not_finite(uint32_t dtype, const uint8_t *data, uint64_t bytes) {
  const uint64_t count = bytes / item_bytes(dtype);
  if (dtype == FLASHRT_F32) {
    for (uint64_t index = 0; index < count; ++index) {
      float value;
      std::memcpy(&value, data + index * sizeof value, sizeof value);
      if (!std::isfinite(value)) return index;
    }
  } else if (dtype == FLASHRT_F16 || dtype == FLASHRT_BF16) {
    const uint16_t exponent = dtype == FLASHRT_F16 ? 0x7C00 : 0x7F80;
    for (uint64_t index = 0; index < count; ++index) {
      uint16_t value;
      std::memcpy(&value, data + index * sizeof value, sizeof value);
      if ((value & exponent) == exponent) return index;
    }
  }
  return count;
}

template <typename Number>
uint64_t first_outside(const flashrt_range &range, const uint8_t *data, uint64_t count, int64_t &value) {
  for (uint64_t index = 0; index < count; ++index) {
    Number found;
    std::memcpy(&found, data + index * sizeof found, sizeof found);
    value = found;
    if (value < range.lowest || value > range.highest) return index;
  }
  return count;
}

// The first whole number that is out of range and its value, or `count`.
uint64_t first_outside(const flashrt_range &range, uint32_t dtype, const uint8_t *data, uint64_t count, int64_t &value) {
  if (range.lowest == INT64_MIN && range.highest == INT64_MAX) return count;
  switch (dtype) {
    case FLASHRT_I8: return first_outside<int8_t>(range, data, count, value);
    case FLASHRT_U8: return first_outside<uint8_t>(range, data, count, value);
    case FLASHRT_I32: return first_outside<int32_t>(range, data, count, value);
    case FLASHRT_I64: return first_outside<int64_t>(range, data, count, value);
    default: return count;
  }
}

flashrt_status check_value(const flashrt_input &spec, const flashrt_range &range, const uint8_t *data, uint64_t bytes) {
  const bool fits = spec.shorter != 0 ? bytes > 0 && bytes <= spec.bytes && bytes % item_bytes(spec.dtype) == 0
                                      : bytes == spec.bytes;
  if (!fits) {
    return fail(FLASHRT_E_BYTES, "input '%s': expected %s%llu bytes, got %llu", spec.name,
                spec.shorter != 0 ? "at most " : "", static_cast<unsigned long long>(spec.bytes),
                static_cast<unsigned long long>(bytes));
  }
  const uint64_t count = bytes / item_bytes(spec.dtype);
  const uint64_t bad = first_not_finite(spec.dtype, data, bytes);
  if (bad != count) {
    return fail(FLASHRT_E_INPUT, "input '%s': expected finite values, got NaN or infinity at element %llu", spec.name,
                static_cast<unsigned long long>(bad));
  }
  int64_t value = 0;
  const uint64_t outside = first_outside(range, spec.dtype, data, count, value);
  if (outside != count) {
    return fail(FLASHRT_E_INPUT, "input '%s': expected %lld..%lld, got %lld at element %llu", spec.name,
                static_cast<long long>(range.lowest), static_cast<long long>(range.highest),
                static_cast<long long>(value), static_cast<unsigned long long>(outside));
  }
  return FLASHRT_OK;
}

using Clock = std::chrono::steady_clock;

double since_us(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

flashrt_status Engine::write(uint32_t index, uint32_t input, const uint8_t *data, uint64_t bytes) {
  if (input >= plan_.inputs) return fail(FLASHRT_E_INDEX, "input %u: expected one of %u", input, plan_.inputs);
  if (data == nullptr) return fail(FLASHRT_E_ARGUMENT, "input %u: expected a value, got null", input);
  const flashrt_input &spec = plan_.input[input];
  if (spec.update == FLASHRT_UPDATE_SETUP) {
    return fail(FLASHRT_E_INPUT, "input '%s': expected one that may change, got one of the set-up", spec.name);
  }
  FLASHRT_TRY(check_value(spec, range(index, input), data, bytes));
  flashrt_seat &seat = plan_.seat[index];
  Desk &desk = desks_[index];
  bool shown = spec.rate != FLASHRT_RATE_CHUNK;  // it may show something that Python has not seen
  if (spec.update == FLASHRT_UPDATE_STAGED) {
    const uint64_t reads = plan_.stage[spec.transform].reads_inputs;
    const bool same = has(seat.held.staged, input) && seat.held.staged_bytes[input] == bytes &&
                      std::memcmp(seat.staged_block + staged_place_[input], data, bytes) == 0;
    const bool kept = has(seat.held.made, spec.transform) && (seat.held.staged & reads) == reads &&
                      (seat.announced & reads) == 0;
    if (kept && same) {
      desk.vouched |= bit(input);  // the retained product is already that of this value
      return FLASHRT_OK;
    }
    if (kept) bring_vouched(index, reads & ~bit(input));
    seat.held.staged &= ~bit(input);  // until the transform has run, the product is of neither value
    shown = shown && !same;
  }
  std::memcpy(desk.inputs + input_place_[input], data, bytes);
  desk.lengths[input] = bytes;
  desk.pending |= bit(input);
  if (spec.rate == FLASHRT_RATE_PROMPT) seat.held.foreign |= FLASHRT_FOREIGN_PROMPT;
  if (shown) seat.held.foreign |= FLASHRT_FOREIGN_OBSERVATION;
  ledger(index).written(input);
  return FLASHRT_OK;
}

// Of `inputs`, those that were written again with the bytes behind a retained result, and are in no window: since
// a restore, or since another session used the buffers.
void Engine::bring_vouched(uint32_t index, uint64_t inputs) {
  flashrt_seat &seat = plan_.seat[index];
  Desk &desk = desks_[index];
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    if (!has(inputs & desk.vouched & seat.held.staged, input) || seat.epochs[input] != 0) continue;
    std::memcpy(desk.inputs + input_place_[input], seat.staged_block + staged_place_[input], seat.held.staged_bytes[input]);
    desk.lengths[input] = seat.held.staged_bytes[input];
    desk.pending |= bit(input);
    ledger(index).written(input);
  }
}

// Starts copies of what was written to the windows; neighbours go in one.
flashrt_status Engine::send(uint32_t index) {
  Desk &desk = desks_[index];
  for (size_t at = 0; at < order_.size();) {
    if (!has(desk.pending, order_[at])) {
      ++at;
      continue;
    }
    const size_t first = at;
    while (at + 1 < order_.size() && joined_[at + 1] != 0 && has(desk.pending, order_[at + 1])) ++at;
    const uint32_t from = order_[first], last = order_[at];
    const uint64_t bytes = input_place_[last] + desk.lengths[last] - input_place_[from];
    FLASHRT_TRY(device_->write(buffer(index, plan_.input[from].buffer).address, desk.inputs + input_place_[from], bytes));
    ++at;
  }
  desk.pending = 0;
  return FLASHRT_OK;
}

// Replays stages as one graph: windows there, graph, outputs back, one wait for all of it.
flashrt_status Engine::replay(uint32_t index, uint64_t stages, flashrt_report *report) {
  flashrt_seat &seat = plan_.seat[index];
  Desk &desk = desks_[index];
  const uint32_t base = seat.working_set * plan_.programs;
  uint32_t found = 0;
  while (found < plan_.programs && (plan_.program[base + found].graph.shape != seat.held.shape ||
                                    plan_.program[base + found].graph.stages != stages)) {
    ++found;
  }
  if (found == plan_.programs) {
    return fail(FLASHRT_E_SHAPE, "replay: expected a shape in use, got none; flashrt_select_shape first");
  }
  const flashrt_program &program = plan_.program[base + found];
  uint64_t made = 0;
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (has(stages, stage)) made |= plan_.stage[stage].writes_outputs;
  }
  const auto work = [&]() -> flashrt_status {
    Use use(*this);
    FLASHRT_TRY(use.status());
    FLASHRT_TRY(send(index));
    FLASHRT_TRY(device_->launch(base + found, program));
    for (uint32_t output = 0; output < plan_.outputs; ++output) {
      if (!has(made, output)) continue;
      const flashrt_output &spec = plan_.output[output];
      FLASHRT_TRY(device_->read(desk.outputs + output_place_[output], buffer(index, spec.buffer).address, spec.bytes));
    }
    FLASHRT_TRY(device_->wait());
    return report != nullptr ? device_->times(program, report->stage_ms) : FLASHRT_OK;
  };
  desk.fetched &= ~made;
  if (const flashrt_status status = work(); status != FLASHRT_OK) {
    ledger(index).forget();
    desk.fetched = 0;
    return status;
  }
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (!has(stages, stage)) continue;
    ledger(index).ran(stage);
    if (plan_.stage[stage].transform != 0) keep_staged(index, stage);
  }
  ledger(index).settle(stages);
  desk.fetched |= made;
  if (report != nullptr) report->stages |= stages;
  return FLASHRT_OK;
}

void Engine::keep_staged(uint32_t index, uint32_t transform) {
  flashrt_seat &seat = plan_.seat[index];
  Desk &desk = desks_[index];
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    if (plan_.input[input].transform != transform) continue;
    std::memcpy(seat.staged_block + staged_place_[input], desk.inputs + input_place_[input], desk.lengths[input]);
    seat.held.staged_bytes[input] = desk.lengths[input];
    seat.held.staged |= bit(input);
    desk.vouched &= ~bit(input);
  }
}

flashrt_status Engine::run(uint32_t index, uint32_t stage, uint32_t flags, flashrt_report *report) {
  if (stage >= plan_.stages) return fail(FLASHRT_E_INDEX, "stage %u: expected one of %u", stage, plan_.stages);
  const Clock::time_point start = Clock::now();
  std::lock_guard<std::mutex> guard(lock_);
  FLASHRT_TRY(admit(index));
  FLASHRT_TRY(ledger(index).check(stage, (flags & FLASHRT_ALLOW_STALE) != 0, 0));
  FLASHRT_TRY(replay(index, bit(stage), report));
  if (report != nullptr) {
    report->index = plan_.seat[index].held.decisions;
    report->wall_us = since_us(start);
  }
  return FLASHRT_OK;
}

flashrt_status Engine::decide(uint32_t index, flashrt_report *report) {
  const Clock::time_point start = Clock::now();
  std::lock_guard<std::mutex> guard(lock_);
  FLASHRT_TRY(admit(index));
  uint64_t whole = 0;
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (plan_.stage[stage].transform == 0) whole |= bit(stage);
  }
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (plan_.stage[stage].transform == 0 || !ledger(index).due(stage)) continue;
    FLASHRT_TRY(ledger(index).check(stage, false, 0));
    FLASHRT_TRY(replay(index, bit(stage), report));
  }
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (has(whole, stage)) FLASHRT_TRY(ledger(index).check(stage, false, whole));
  }
  FLASHRT_TRY(replay(index, whole, report));
  FLASHRT_TRY(finish(index, report));
  if (report != nullptr) report->wall_us = since_us(start);
  return FLASHRT_OK;
}

flashrt_status Engine::act(uint32_t index, uint32_t flags, flashrt_report *report) {
  const Clock::time_point start = Clock::now();
  std::lock_guard<std::mutex> guard(lock_);
  FLASHRT_TRY(admit(index));
  uint32_t last = plan_.stages;
  while (last > 0 && plan_.stage[last - 1].transform != 0) --last;
  if (last == 0) return fail(FLASHRT_E_INDEX, "act: expected a stage that is no transform, got none");
  FLASHRT_TRY(ledger(index).check(last - 1, (flags & FLASHRT_ALLOW_STALE) != 0, 0));
  FLASHRT_TRY(replay(index, bit(last - 1), report));
  FLASHRT_TRY(finish(index, report));
  if (report != nullptr) report->wall_us = since_us(start);
  return FLASHRT_OK;
}

// A decision counts once its outputs are numbers.
flashrt_status Engine::finish(uint32_t index, flashrt_report *report) {
  Desk &desk = desks_[index];
  for (uint32_t output = 0; output < plan_.outputs; ++output) {
    const flashrt_output &spec = plan_.output[output];
    if (!has(desk.fetched, output)) continue;
    const uint64_t bad = first_not_finite(spec.dtype, desk.outputs + output_place_[output], spec.bytes);
    if (bad == spec.bytes / item_bytes(spec.dtype)) continue;
    desk.fetched &= ~bit(output);  // nobody shall send them to a robot
    return fail(FLASHRT_E_NUMERICS,
                "output '%s': expected finite values, got NaN or infinity at element %llu; check the weights and the "
                "precision plan",
                spec.name, static_cast<unsigned long long>(bad));
  }
  flashrt_held &held = plan_.seat[index].held;
  if (report != nullptr) report->index = held.decisions;
  ++held.decisions;
  return FLASHRT_OK;
}

flashrt_status Engine::read(uint32_t index, uint32_t output, uint32_t flags, uint8_t *data, uint64_t bytes) const {
  if (output >= plan_.outputs) return fail(FLASHRT_E_INDEX, "output %u: expected one of %u", output, plan_.outputs);
  if (data == nullptr) return fail(FLASHRT_E_ARGUMENT, "output %u: expected a place, got null", output);
  const flashrt_output &spec = plan_.output[output];
  if (bytes != spec.bytes) {
    return fail(FLASHRT_E_BYTES, "output '%s': expected %llu bytes, got %llu", spec.name,
                static_cast<unsigned long long>(spec.bytes), static_cast<unsigned long long>(bytes));
  }
  const Desk &desk = desks_[index];
  if (!has(desk.fetched, output)) {
    return fail(FLASHRT_E_NOT_MADE, "output '%s': expected a replay that made it, got none since the start, a restore "
                "or a failure; decide first", spec.name);
  }
  FLASHRT_TRY(ledger(index).check_output(output, (flags & FLASHRT_ALLOW_STALE) != 0));
  std::memcpy(data, desk.outputs + output_place_[output], spec.bytes);
  return FLASHRT_OK;
}

}  // namespace flashrt
