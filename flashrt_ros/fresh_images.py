"""Timed decisions that begin with new images, in place of whatever the last ones happen to be.

Cameras and decisions run by clocks of their own: when a decision is due, its newest image is
anything up to a camera's period old. Images that come before the last one are made ready meanwhile.
Everything here runs on the executor thread, unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from flashrt_ros.inputs import Input
from flashrt_ros.worker import InferenceThread


class FreshImages:
    """Begins a decision that is due once every camera has brought a new image, or its time is up.

    A camera without any usable image is not waited for.

    Args:
        node: has the timer.
        cameras: to wait for.
        limit_s: to wait at most; 0 does not wait.
        begin: begins the decision.
        worker: the inference thread.
        prepare: called on it for each camera with a new image, while others are waited for.
    """

    def __init__(
        self,
        node: Any,
        cameras: Sequence[Input],
        limit_s: float,
        begin: Callable[[], None],
        worker: InferenceThread,
        prepare: Callable[[Any], None],
    ) -> None:
        self._node = node
        self._cameras = tuple(cameras)
        self._limit_s = limit_s
        self._begin = begin
        self._worker = worker
        self._prepare = prepare
        self._timer: Any = None
        self._before: dict[Input, int | None] = {}  # those waited for, and what they had
        self._missing: set[Input] = set()  # those of them that have nothing new yet

    def start(self, clock: Any) -> None:
        """The node becomes active; ``clock`` bounds the wait."""
        if self._limit_s > 0.0:
            self._timer = self._node.create_timer(self._limit_s, self._go, clock=clock)
            self._timer.cancel()

    def stop(self) -> None:
        """The node leaves the active state."""
        self.cancel()
        if self._timer is not None:
            self._node.destroy_timer(self._timer)
            self._timer = None

    def due(self, now_ns: int) -> None:
        """A decision is due; ``now_ns`` on the node's clock."""
        if self._before:
            return  # as the one before: one decision answers both
        if self._timer is not None:
            alive = [c for c in self._cameras if c.select(now_ns) is not None]
            self._before = {camera: camera.newest_stamp_ns() for camera in alive}
            self._missing = set(alive)
        if self._before:
            self._timer.reset()
        else:
            self._begin()

    def poll(self) -> None:
        """A message was taken: begin if it was the last that is waited for."""
        if not self._before:
            return
        came = [c for c in self._missing if c.newest_stamp_ns() != self._before[c]]
        self._missing.difference_update(came)
        if not self._missing:
            self._go()
        else:
            for camera in came:
                self._worker.submit(partial(self._work, camera), lambda _: None, urgent=True)

    def cancel(self) -> None:
        """Wait no longer, and begin nothing."""
        self._before = {}
        if self._timer is not None:
            self._timer.cancel()

    def _work(self, camera: Input) -> None:
        """On the inference thread."""
        if self._before:  # else the decision has begun, and looks itself
            self._prepare(camera)

    def _go(self) -> None:
        self._before = {}
        self._begin()  # before anything else: the images get older
        if self._timer is not None and not self._before:
            self._timer.cancel()
