"""Which samples belong together: the newest images within a skew, and the joints nearest to them.

A camera is older than the joints by its exposure and transfer, and cameras are not in phase. A
policy was trained on images and joint states of one moment; the newest of each are not. All times
are whole nanoseconds, so that a limit holds exactly. Source: the approximate-time policy of ROS's
message_filters does the same for whole streams; here each decision chooses for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar


class Stamped(Protocol):
    """Has a stamp, in nanoseconds."""

    @property
    def stamp_ns(self) -> int: ...


S = TypeVar("S", bound=Stamped)


def newest(streams: Mapping[str, Sequence[S]]) -> dict[str, S]:
    """The newest sample of each stream; none may be empty."""
    return {name: samples[-1] for name, samples in streams.items()}


def consistent(
    images: Mapping[str, Sequence[S]], joints: Sequence[S] | None, max_skew_ns: int
) -> tuple[dict[str, S], S | None] | None:
    """The newest image of each camera, and a joint state, that lie within ``max_skew_ns``.

    Args:
        images: camera -> its samples, in rising order of stamps; none may be empty.
        joints: states in the same order; None where the policy reads none.
        max_skew_ns: most that any two stamps may differ by.

    Returns:
        The images and the state nearest to their middle, the newer of two that are equally near;
        None where no choice keeps the limit.
    """
    for anchor in sorted({s.stamp_ns for samples in images.values() for s in samples})[::-1]:
        chosen: dict[str, S] = {}
        for name, samples in images.items():
            fits = [s for s in samples if anchor - max_skew_ns <= s.stamp_ns <= anchor]
            if not fits:
                break
            chosen[name] = fits[-1]
        else:
            if joints is None:
                return chosen, None
            state = _nearest(joints, [s.stamp_ns for s in chosen.values()], max_skew_ns)
            if state is not None:
                return chosen, state
    return None


def spread_ns(stamps: Sequence[int]) -> int:
    """How far apart the stamps are."""
    return max(stamps) - min(stamps)


def _nearest(states: Sequence[S], stamps: Sequence[int], max_skew_ns: int) -> S | None:
    # Twice the distance from twice the middle: whole numbers, where the middle may be a half.
    low, high = min(stamps), max(stamps)
    twice = low + high
    fits = [s for s in states if high - max_skew_ns <= s.stamp_ns <= low + max_skew_ns]
    return min(fits, key=lambda s: (abs(2 * s.stamp_ns - twice), -s.stamp_ns), default=None)
