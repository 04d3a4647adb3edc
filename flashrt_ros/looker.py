"""What a node sees and does on the way through a chunk, for a policy that will look at it, and when
the chunk is over.

Asked on the executor thread: whenever a message came, and at every tick of the timer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flashrt_core.load import MAIN
from flashrt_ros.decider import Decider
from flashrt_ros.errors import StaleInputError, WrongStateError
from flashrt_ros.execution.control import Control
from flashrt_ros.stamps import in_seconds
from flashrt_ros.worker import InferenceThread, Outcome


class Looker:
    """Has pictures kept when they are due, and knows what was executed.

    Args:
        decider: has the chunks under way; none where decisions stand alone.
        worker: where pictures are kept.
        ready: whether inputs are there that are stamped at least so, by name (ns).
        cameras: names of their inputs.
        now_ns: the node's clock.
        execution: where the node executes its chunks itself; else None.
        failed: told how keeping one failed, unless a camera had none after all.
    """

    def __init__(
        self,
        decider: Decider,
        worker: InferenceThread,
        ready: Callable[[dict[str, int]], bool],
        cameras: tuple[str, ...],
        now_ns: Callable[[], int],
        execution: Control | None,
        failed: Callable[[Outcome], None],
    ) -> None:
        self._decider = decider
        self._worker = worker
        self._ready = ready
        self._cameras = cameras
        self._now_ns = now_ns
        self._execution = execution
        self._failed = failed
        self._looking = False

    def poll(self) -> None:
        """Keep a picture, once every camera has the one that is due."""
        wanted_ns = self._decider.wanted_ns()
        if wanted_ns is None or self._looking or self._now_ns() < wanted_ns:
            return
        if not self._ready(dict.fromkeys(self._cameras, wanted_ns)):
            return
        self._looking = True
        self._worker.submit(self._decider.look, self._after, urgent=True)

    def over(self, session: str = MAIN) -> bool:
        """Whether the next decision of a session may be made."""
        episode = self._decider.episodes.get(session)
        return episode is None or episode.over(self._now_ns())

    def under_way(self, what: str, session: str) -> WrongStateError:
        """The error about ``what``, as its chunk is not over."""
        episode = self._decider.episodes.get(session)
        left_ns = 0 if episode is None else max(0, episode.end_ns - self._now_ns())
        return WrongStateError(
            what,
            expected=f"the end of the chunk that session '{session}' executes",
            got=f"{in_seconds(left_ns)} before it",
            remedy="give a longer timeout",
        )

    def executed(self) -> Any:
        """[rows, action_dim] float64, what was done with the main session's chunk that is over;
        None where others executed it, and where it is not known.
        """
        episode = self._decider.episode
        if self._execution is None or episode is None or not episode.under_way:
            return None
        return self._execution.executed(episode.end_ns)

    def _after(self, outcome: Outcome) -> None:
        self._looking = False
        if outcome.error is not None and not isinstance(
            outcome.error, StaleInputError | WrongStateError
        ):
            self._failed(outcome)
