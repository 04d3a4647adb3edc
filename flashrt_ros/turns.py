"""Requests that have to wait for the end of a chunk, where decisions build on each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from flashrt_core.load import MAIN
from flashrt_ros.errors import RequestTimeoutError
from flashrt_ros.runtime import Runtime
from flashrt_ros.worker import Outcome, attempt

_DECISION_S = 10.0  # the longest that one is waited for


async def decide(runtime: Runtime, name: str, not_before: dict[str, int], timeout_s: float) -> Any:
    """A decision of session ``name`` on an observation; the ActionChunk.

    Waits until every input is usable and those named are stamped at least so (ns), and until the
    session's chunk is over. That turn is then the request's: the timer makes no decision.

    Raises:
        WrongStateError: the chunk was not over in time.
        FlashRTError: as waiting for inputs and deciding.
    """
    begun_s = time.monotonic()
    await runtime.wait_for_inputs(not_before, timeout_s)
    decider, looker = runtime.decider, runtime.looker
    if not decider.episodes:
        return await runtime.run(partial(decider.decide, name, False, not_before))
    await runtime.run(lambda: None)  # pictures that are there are kept before it is answered
    left_s = max(0.0, timeout_s - (time.monotonic() - begun_s))
    late = partial(looker.under_way, "service ~/decide", name)
    await runtime.waiters.wait(partial(_claim, runtime, name, not_before), late, left_s)
    executed = looker.executed() if looker.over() else None
    work = partial(decider.decide, name, False, not_before, executed=executed)
    if name == MAIN:
        work = partial(runtime.in_turn, work)
    return await runtime.run(work, urgent=True)


def _claim(runtime: Runtime, name: str, not_before: dict[str, int]) -> bool:
    """Whether a request may decide now; the main session's turn is then its own."""
    main = name == MAIN
    taken = main and runtime.deciding
    free = runtime.looker.over(name) and runtime.ready(not_before) and not taken
    runtime.deciding |= free and main
    return free


async def where_a_chunk_begins(runtime: Runtime, what: str, work: Callable[[], Any]) -> Any:
    """Run ``work`` on the inference thread; where timed decisions build on each other, before
    anything is seen of the chunk under way, or right behind the next decision.

    Raises:
        RequestTimeoutError: no decision followed.
        FlashRTError: what ``work`` raises.
    """
    episode = runtime.decider.episode
    if episode is None or not runtime.timed:
        return await runtime.run(work)
    outcomes: list[Outcome] = []
    waiting = runtime.decider.at_beginning

    def now() -> None:
        outcomes.append(attempt(work))

    def begin() -> None:
        if not runtime.session.past.seen and episode.under_way:
            now()
        else:
            waiting.append(now)

    limit_s = episode.seconds + runtime.gap_ns * 1e-9 + _DECISION_S

    def late() -> RequestTimeoutError:
        return RequestTimeoutError(
            what,
            expected=f"a chunk to begin within {limit_s:g} s",
            got="none",
            remedy="see what diagnostics say of decisions, or deactivate the node first",
        )

    await runtime.run(begin)
    try:
        await runtime.waiters.wait(lambda: bool(outcomes), late, limit_s)
    finally:
        if now in waiting:  # too late, or the node was deactivated
            waiting.remove(now)
    if (error := outcomes[0].error) is not None:
        raise error
    return outcomes[0].value
