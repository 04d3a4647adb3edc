// Which inputs every retained result was made from: the rules of flashrt_core/freshness.py, over the
// records that Python reads back.
#pragma once

#include "handover.h"

namespace flashrt {

inline bool has(uint64_t mask, uint32_t bit) { return (mask >> bit & 1) != 0; }
inline uint64_t bit(uint32_t index) { return uint64_t{1} << index; }

class Ledger {
 public:
  Ledger(const flashrt_handover &plan, flashrt_seat &seat) : plan_(plan), seat_(seat) {}

  // The window of `input` holds a new value.
  void written(uint32_t input);
  // The window of `input` does not hold its newest value.
  void tear(uint32_t input);
  // `stage` has replayed on the current windows and its prerequisites' results. What is made of an old value of
  // an input and of a new one is as old as the old one.
  void ran(uint32_t stage);
  // What the context was made with, now that the stages of `stages` have run: once it is told, nothing that
  // becomes stale behind it changes that.
  void settle(uint64_t stages);
  // Nothing retained can be trusted: a replay failed, or the shape changed.
  void forget() { seat_.held.made = 0; }
  // What has changed since something was made from it, for who goes on from `held` without the windows.
  void note(flashrt_held &held) const;
  // The retained results are those of seat.held; every window is absent. What was stale stays so: an input
  // that had changed counts as announced.
  void restored();
  // The windows are gone, but for inputs of `kept` that wait for their way there; the results are not.
  void lose_windows(uint64_t kept = 0);
  // E_UNWRITTEN or E_STALE unless `stage` may run now, behind the stages of `before` in one replay.
  flashrt_status check(uint32_t stage, bool allow_stale, uint64_t before) const;
  // E_NOT_MADE or E_STALE unless a result that a stage left in `output` is one to act upon.
  flashrt_status check_output(uint32_t output, bool allow_stale) const;
  // FLASHRT_ABSENT, FLASHRT_STALE or FLASHRT_CURRENT.
  uint32_t validity(uint32_t stage) const;
  // Whether a transform has to run: all it reads is written, and its result is not of that.
  bool due(uint32_t transform) const;

 private:
  // Those that make what the last stage of a decision acts on; itself where nothing else does.
  uint64_t context_stages() const;
  // An input that has changed since `stage` ran; FLASHRT_NONE if there is none.
  uint32_t newer(uint32_t stage) const;

  const flashrt_handover &plan_;
  flashrt_seat &seat_;
};

}  // namespace flashrt
