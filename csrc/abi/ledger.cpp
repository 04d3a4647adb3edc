#include "ledger.hpp"

#include <algorithm>
#include <cstring>

#include "status.hpp"

namespace flashrt {

void Ledger::written(uint32_t input) {
  seat_.epochs[input] = ++seat_.clock;
  seat_.announced &= ~bit(input);
}

void Ledger::tear(uint32_t input) {
  seat_.epochs[input] = ++seat_.clock;
  seat_.announced |= bit(input);
}

void Ledger::ran(uint32_t stage) {
  flashrt_held &held = seat_.held;
  uint64_t lineage[FLASHRT_MAX_INPUTS] = {};
  const auto made_from = [&lineage](uint32_t input, uint64_t epoch) {
    if (epoch != 0 && (lineage[input] == 0 || epoch < lineage[input])) lineage[input] = epoch;
  };
  for (uint32_t before = 0; before < plan_.stages; ++before) {
    if (!has(plan_.stage[stage].requires_stages, before)) continue;
    for (uint32_t input = 0; input < plan_.inputs; ++input) made_from(input, held.lineage[before][input]);
  }
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    if (has(plan_.stage[stage].reads_inputs, input)) made_from(input, seat_.epochs[input]);
  }
  std::memcpy(held.lineage[stage], lineage, sizeof lineage);
  held.made |= bit(stage);
}

void Ledger::settle(uint64_t stages) {
  flashrt_held &held = seat_.held;
  const uint64_t context = context_stages();
  bool current = true;
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (has(context, stage)) current = current && validity(stage) == FLASHRT_CURRENT;
  }
  if (current) {
    const bool seen = (held.foreign & FLASHRT_FOREIGN_OBSERVATION) == 0;
    held.context = seen ? FLASHRT_CONTEXT_SEEN : FLASHRT_CONTEXT_UNKNOWN;
  } else if ((stages & context) != 0) {
    held.context = FLASHRT_CONTEXT_UNKNOWN;  // of old and new
  }
}

uint64_t Ledger::context_stages() const {
  uint64_t found = 0, transforms = 0;
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (plan_.stage[stage].transform != 0) {
      transforms |= bit(stage);
      continue;
    }
    found = plan_.stage[stage].requires_stages & ~transforms;
    if (found == 0) found = bit(stage);
  }
  return found;
}

void Ledger::note(flashrt_held &held) const {
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    const uint64_t now = seat_.epochs[input];
    held.newer[input] = 0;
    for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
      const uint64_t made_from = has(held.made, stage) ? held.lineage[stage][input] : 0;
      if (made_from != 0 && now != 0 && now != made_from) held.newer[input] = now;
    }
  }
}

void Ledger::restored() {
  std::memcpy(seat_.epochs, seat_.held.newer, sizeof seat_.epochs);
  seat_.announced = 0;
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    if (seat_.epochs[input] != 0) seat_.announced |= bit(input);
    seat_.clock = std::max(seat_.clock, seat_.epochs[input]);
  }
  // A later write must never reuse an epoch that the lineage already names.
  for (uint32_t stage = 0; stage < plan_.stages; ++stage) {
    if (!has(seat_.held.made, stage)) continue;
    for (uint32_t input = 0; input < plan_.inputs; ++input) {
      seat_.clock = std::max(seat_.clock, seat_.held.lineage[stage][input]);
    }
  }
}

void Ledger::lose_windows(uint64_t kept) {
  note(seat_.held);
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    if (has(kept, input)) continue;
    if (seat_.held.newer[input] != 0) seat_.announced |= bit(input);
    if (!has(seat_.announced, input)) seat_.epochs[input] = 0;
  }
}

uint32_t Ledger::newer(uint32_t stage) const {
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    const uint64_t made_from = seat_.held.lineage[stage][input], now = seat_.epochs[input];
    if (made_from != 0 && now != 0 && now != made_from) return input;
  }
  return FLASHRT_NONE;
}

flashrt_status Ledger::check(uint32_t stage, bool allow_stale, uint64_t before) const {
  const flashrt_stage &spec = plan_.stage[stage];
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    if (!has(spec.reads_inputs, input)) continue;
    const char *name = plan_.input[input].name;
    if (has(seat_.announced, input)) {
      return fail(FLASHRT_E_UNWRITTEN,
                  "stage '%s' reads input '%s': expected its new value, got none of it: it was announced only, "
                  "or lost with the window; write the input first",
                  spec.name, name);
    }
    if (seat_.epochs[input] == 0) {
      return fail(FLASHRT_E_UNWRITTEN,
                  "stage '%s' reads input '%s': expected a value written for this session, got none since the "
                  "start, a restore or a session switch; write the input first",
                  spec.name, name);
    }
  }
  for (uint32_t needed = 0; needed < plan_.stages; ++needed) {
    if (!has(spec.requires_stages, needed) || has(before, needed)) continue;
    const char *name = plan_.stage[needed].name;
    if (!has(seat_.held.made, needed)) {
      return fail(FLASHRT_E_STALE, "stage '%s': expected stage '%s' to have run, got no retained result; run it first",
                  spec.name, name);
    }
    const uint32_t input = newer(needed);
    if (input != FLASHRT_NONE && !allow_stale) {
      return fail(FLASHRT_E_STALE,
                  "stage '%s' would use '%s': expected a result of the current inputs, got one from before the last "
                  "write of '%s'; run it again, or pass FLASHRT_ALLOW_STALE",
                  spec.name, name, plan_.input[input].name);
    }
  }
  return FLASHRT_OK;
}

flashrt_status Ledger::check_output(uint32_t output, bool allow_stale) const {
  const char *name = plan_.output[output].name;
  uint32_t stage = plan_.stages;
  while (stage > 0 && !has(plan_.stage[stage - 1].writes_outputs, output)) --stage;
  if (stage == 0 || !has(seat_.held.made, stage - 1)) {
    return fail(FLASHRT_E_NOT_MADE, "output '%s': expected a replay that made it, got none since the start, a restore "
                "or a failure; decide first", name);
  }
  const uint32_t input = newer(stage - 1);
  if (input == FLASHRT_NONE || allow_stale) return FLASHRT_OK;
  return fail(FLASHRT_E_STALE, "output '%s': expected a result of the current inputs, got one from before the last write of "
              "'%s'; decide again, or use flashrt_read_output_flags with FLASHRT_ALLOW_STALE",
              name, plan_.input[input].name);
}

uint32_t Ledger::validity(uint32_t stage) const {
  if (!has(seat_.held.made, stage)) return FLASHRT_ABSENT;
  return newer(stage) == FLASHRT_NONE ? FLASHRT_CURRENT : FLASHRT_STALE;
}

bool Ledger::due(uint32_t transform) const {
  for (uint32_t input = 0; input < plan_.inputs; ++input) {
    const bool reads = has(plan_.stage[transform].reads_inputs, input);
    if (reads && (seat_.epochs[input] == 0 || has(seat_.announced, input))) return false;
  }
  return !has(seat_.held.made, transform) || newer(transform) != FLASHRT_NONE;
}

}  // namespace flashrt
