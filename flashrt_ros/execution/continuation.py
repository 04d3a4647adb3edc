"""What a decision continues: the schedule as it begins, and when its chunk will be there.

Made on the executor thread, asked on the inference thread: which rows of the new chunk are past by
then is known only when its observation is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashrt_core.guidance import Previous
from flashrt_ros.execution.schedule import Schedule


@dataclass(frozen=True, eq=False)
class Continuation:
    """Of one decision.

    Attributes:
        schedule: a copy.
        ready_ns: when the chunk is expected to be there.
        decay: of the weights behind the kept rows.
    """

    schedule: Schedule
    ready_ns: int
    decay: str

    def previous(self, first_ns: int, horizon: int) -> Previous | None:
        """What a chunk of so many rows, the first due at ``first_ns``, continues; None: nothing."""
        left = self.schedule.remainder(first_ns, self.ready_ns)
        rows = left.rows[:horizon]
        if not len(rows):
            return None
        return Previous(rows, min(left.frozen, len(rows)), self.decay)
