"""What a node sees and does on the way through a chunk, for a policy that will look at it.

Asked on the executor thread: whenever a message came, and at every tick of the timer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashrt_ros.episode import Episode
from flashrt_ros.errors import StaleInputError, WrongStateError
from flashrt_ros.execution.control import Control
from flashrt_ros.worker import InferenceThread, Outcome


class Looker:
    """Has pictures kept when they are due, and knows what was executed.

    Args:
        episode: the chunk under way; None for a policy whose decisions stand alone.
        worker: where pictures are kept.
        look: keeps the one that is due.
        ready: whether inputs are there that are stamped at least so, by name (ns).
        cameras: names of their inputs.
        now_ns: the node's clock.
        execution: where the node executes its chunks itself; else None.
        failed: told how keeping one failed, unless a camera had none after all.
    """

    def __init__(
        self,
        episode: Episode | None,
        worker: InferenceThread,
        look: Callable[[], None],
        ready: Callable[[dict[str, int]], bool],
        cameras: tuple[str, ...],
        now_ns: Callable[[], int],
        execution: Control | None,
        failed: Callable[[Outcome], None],
    ) -> None:
        self._episode = episode
        self._worker = worker
        self._look = look
        self._ready = ready
        self._cameras = cameras
        self._now_ns = now_ns
        self._execution = execution
        self._failed = failed
        self._looking = False

    def poll(self) -> None:
        """Keep a picture, once every camera has the one that is due."""
        wanted_ns = None if self._episode is None else self._episode.wanted_ns()
        if wanted_ns is None or self._looking or self._now_ns() < wanted_ns:
            return
        if not self._ready(dict.fromkeys(self._cameras, wanted_ns)):
            return
        self._looking = True
        self._worker.submit(self._look, self._after, urgent=True)

    def executed(self) -> Any:
        """[rows, action_dim] float64, what was done with the chunk that is over; None where others
        executed it, and where it is not known.
        """
        episode = self._episode
        if self._execution is None or episode is None or not episode.under_way:
            return None
        return self._execution.executed(episode.row_ends_ns)

    def _after(self, outcome: Outcome) -> None:
        self._looking = False
        if outcome.error is not None and not isinstance(
            outcome.error, StaleInputError | WrongStateError
        ):
            self._failed(outcome)
