"""What was seen and done since a session's last decision, where decisions build on each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from .capsule.state import HostState
from .contract import Contract, HistorySpec
from .devices.base import NUMPY_DTYPES
from .drawing import checked_value
from .errors import CapsuleError, InputError, SessionError, StaleStateError
from .images import Frame
from .policies.base import HistoryProcessor, Observation, Prepared, Processor, as_array

Array = np.ndarray[Any, Any]


class BeyondNetworkError(InputError):
    """What was done is nothing that the network could have decided, nor can be told."""


class Past:
    """Pictures of the chunk under way; one of a session.

    Args:
        contract: of the plan.
        processor: the policy's host-side transforms.

    Attributes:
        seen: pictures of the chunk under way, one dictionary of windows each.
        joined: windows of several pictures, which go into them as they come: a decision has the
            last one to do. They are overwritten by what is seen after it.
        observed: whether the windows of the next decision are written.
    """

    def __init__(self, contract: Contract, processor: Processor) -> None:
        self._contract = contract
        self._processor: Any = processor
        self.seen: list[dict[str, Array]] = []
        self.observed = False
        self.joined: dict[str, Array] = {}

    def clear(self) -> None:
        """A chunk ended, or is taken back."""
        self.observed = False
        self.seen.clear()

    def chunk(self, host: HostState) -> Array | None:
        """Rows that a history lets be executed after the last decision, or None."""
        history = self._contract.history
        if history is None or host.raw is None:
            return None
        actions: Array = self._processor.decode(np.array(host.raw), host.robot_state)
        return actions[-history.rows[history.variant(host.turn - 1)] :]

    def continue_from(self, other: Past) -> None:
        """See what another session has seen."""
        self.clear()
        for each in other.seen:
            self._keep(each)

    def record(
        self, images: Mapping[str, Array | Frame | Prepared], turn: int, session: str
    ) -> None:
        """Keeps a picture of every camera; InputError where none is expected now."""
        history = self._contract.history
        if history is None:
            raise InputError(
                f"a picture between decisions for session {session!r}",
                expected="a policy whose decisions build on each other",
                got=repr(self._contract.policy),
            )
        most = history.pictures[history.variant(turn)] - 1 if turn else 0
        if len(self.seen) >= most:
            raise InputError(
                f"pictures since the last decision of session {session!r}",
                expected=f"{most} before the observation that is decided on",
                got="one more" if turn else "one before the first decision",
                remedy="decide, or restart() for a new episode",
            )
        made: HistoryProcessor = self._processor
        self._keep(made.encode_pictures(images))

    def check_boundary(self, what: str) -> None:
        """CapsuleError about ``what`` in the middle of a chunk."""
        if self.seen:
            raise CapsuleError(
                what,
                expected="a session at the end of a chunk",
                got=f"one with {len(self.seen)} pictures of a chunk under way",
                remedy="do it right after a decision",
            )

    def check_decide(
        self,
        observation: Observation | None,
        executed: Array | None,
        host: HostState,
        made: bool,
        session: str,
    ) -> None:
        """Rows that were executed come with an observation. Where decisions build on each other,
        the last one is there, and this one has a picture.

        ``made``: whether what the last decision left can be trusted. InputError or StaleStateError.
        """
        if observation is None and executed is not None:
            raise InputError(
                "executed rows",
                expected="none without an observation, whose windows they are part of",
                got=f"an array of shape {list(np.shape(executed))}",
                remedy="give both to decide(), or both to observe()",
            )
        if self._contract.history is None:
            return
        if observation is None and not self.observed:
            raise InputError(
                "observation", expected="what is seen where the chunk ends", got="none"
            )
        if host.turn and not made:
            raise StaleStateError(
                f"session {session!r}",
                expected="what its last decision left",
                got="nothing that can be trusted, after a failure",
                remedy="restore a capsule, or restart() for a new episode",
            )

    def check_alone(self, what: str, *, harmless: bool = False) -> None:
        """SessionError about ``what``, unless harmless, where decisions build on each other."""
        if self._contract.history is not None and not harmless:
            raise SessionError(
                what,
                expected="a policy whose decisions stand alone",
                got=f"{self._contract.policy!r}, which has a history",
                remedy="decide()",
            )

    def windows(
        self, values: Mapping[str, Array], host: HostState, executed: Array | None
    ) -> dict[str, Array]:
        """The windows of a decision: pictures joined, and the chunk that was executed.

        Where decisions stand alone, they are ``values``. Those of pictures are overwritten by what
        is seen after the decision, and are checked.

        Args:
            values: as encoded from the observation: one picture where the window takes several.
            host: the session's.
            executed: [rows, action_dim] in robot units; None: the rows as they were decided.

        Raises:
            InputError: too few pictures, or other rows than those of a whole chunk.
        """
        history = self._contract.history
        if history is None:
            if executed is not None:
                raise InputError(
                    "executed rows",
                    expected="none: decisions stand alone",
                    got=f"an array of shape {list(np.shape(executed))}",
                )
            return dict(values)
        expected = history.pictures[history.variant(host.turn)]
        if len(self.seen) + 1 != expected:
            raise InputError(
                "pictures since the last decision",
                expected=f"{expected} of each camera, one every {history.stride} executed rows, "
                "the observation last: decisions start where a chunk ends",
                got=len(self.seen) + 1,
                remedy="record() each while the chunk is executed, or restart()",
            )
        joined = dict(values) | {history.executed: self._executed(history, host, executed)}
        for name in history.pictured:
            self._put(name, len(self.seen), values[name])
            self.joined[name][expected:] = 0.0
            joined[name] = self.joined[name]
        return joined

    def _keep(self, pictures: Mapping[str, Array]) -> None:
        """Puts a picture of every camera behind those that were seen."""
        index = len(self.seen)
        self.seen.append({name: self._put(name, index, each) for name, each in pictures.items()})

    def _put(self, name: str, index: int, picture: Array) -> Array:
        """Makes a picture the one of that number, and checks it while it is in the caches."""
        spec = self._contract.input(name)
        if name not in self.joined:
            self.joined[name] = np.zeros(spec.shape, NUMPY_DTYPES[spec.dtype])
        row: Array = self.joined[name][index]
        row[...] = checked_value(replace(spec, shape=spec.shape[1:]), picture)
        return row

    def _executed(self, history: HistorySpec, host: HostState, executed: Array | None) -> Array:
        shape = self._contract.input(history.executed).shape
        if host.turn == 0 or host.raw is None:
            if executed is not None:
                raise InputError(
                    "executed rows",
                    expected="none before a first decision",
                    got=f"an array of shape {list(np.shape(executed))}",
                )
            return np.zeros(shape, np.float32)
        chunk = np.array(host.raw, np.float32)
        if executed is None:
            return chunk
        rows = history.rows[history.variant(host.turn - 1)]
        done = self._checked(as_array("executed rows", executed), rows)
        raw = self._processor.encode_actions(done, host.robot_state)
        decided = self._processor.decode(np.array(host.raw), host.robot_state)[-rows:]
        # What the network has no number for stays as it was decided, and so does, to the bit, what
        # was done as it was.
        kept = self._processor.encode_actions(np.asarray(decided), host.robot_state)
        lost = np.isnan(self._processor.decode(raw, host.robot_state))
        _check_range(done, decided, lost)
        chunk[-rows:] = np.where(np.isnan(raw) | (raw == kept), chunk[-rows:], raw)
        return chunk

    def _checked(self, done: Array, rows: int) -> Array:
        """[rows, action_dim] finite numbers; InputError says what is wrong, and where."""
        wanted = (rows, self._processor.action_dim)
        if done.shape != wanted or done.dtype.kind not in "fiu":
            raise InputError(
                "executed rows",
                expected=f"{list(wanted)} numbers: a whole chunk",
                got=f"{list(done.shape)} {done.dtype}",
                remedy="decisions start where a chunk ends; restart() where one was given up",
            )
        if not (finite := np.isfinite(done)).all():
            row, column = np.argwhere(~finite)[0]
            raise InputError(
                "executed rows",
                expected="finite numbers",
                got=f"{done[row, column]} in row {row}, column {column}",
            )
        return done


def _check_range(done: Array, decided: Array, lost: Array) -> None:
    """BeyondNetworkError where the network has no number (``lost``) for what was done instead of
    what was decided: that would silently take its place.
    """
    beyond = np.argwhere(lost & (done.astype(np.float64) != decided))
    if len(beyond):
        row, column = beyond[0]
        raise BeyondNetworkError(
            "executed rows",
            expected="actions within 10 of the network's units",
            got=f"{done[row, column]:g} in row {row}, column {column}, where"
            f" {decided[row, column]:g} was decided",
            remedy="give the robot's own units; restart() where it went that far",
        )
