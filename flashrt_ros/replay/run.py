"""Runs of a bag through the node: at recorded timing, or step by step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flashrt_core.policies import find_policy

from .bag import Bag, Route
from .client import PolicyClient
from .messages import sound_messages
from .node_process import NodeProcess
from .parameter_file import ParameterFile
from .player import Player
from .progress import Phase
from .records import ChunkRecord, PlayRecord, RunRecord, TimingRecord
from .report import statistics
from .step import Step, Stepper, steps

# Step mode decides this often where the parameter file decides on request only.
DEFAULT_HZ = 10.0
_LOOK_S = 0.001  # at every tick, for pictures on the way through a chunk
_CHUNK_S = 10.0  # to wait for a chunk that is due
_PATIENCE_S = 0.25  # least time to wait for a chunk, where the replay waits at all


@dataclass(frozen=True)
class Settings:
    """What is replayed through which node.

    Attributes:
        parameters: the node's parameter file.
        log: file for the output of the node process; what the node gets of ``parameters`` is
            written beside it, as ``.yaml``.
        seed: overrides the file's seed where given.
        remaps: topic of the bag -> topic of the node.
        overrides: further parameters that count more than the file.
    """

    parameters: ParameterFile
    log: Path
    seed: int | None = None
    remaps: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class LiveNode:
    """An active node and what drives it."""

    process: NodeProcess
    client: PolicyClient
    player: Player
    routes: tuple[Route, ...]


@contextmanager
def live_node(bag: Bag, settings: Settings, **overrides: object) -> Iterator[LiveNode]:
    """The node of ``settings`` as its own process, active, its clock at the start of the bag.

    Its outputs are off: decisions on a recording must not move a robot.

    Raises:
        OptionError: the bag does not hold what the parameter file asks for.
        NodeStartError: the node ended or refused, with its own reason.
    """
    routes = bag.routes(settings.parameters.inputs, settings.parameters.path, settings.remaps)
    given: dict[str, object] = {"use_sim_time": True, **settings.overrides, **overrides}
    if settings.seed is not None:
        given["seed"] = settings.seed
    file = settings.log.with_suffix(".yaml")
    settings.parameters.write_without_outputs(file)
    with (
        NodeProcess(file, settings.log, given) as process,
        PolicyClient("/policy") as client,
    ):
        client.watch = process.check
        player = Player(client.node, bag, routes)
        process.wait_ready(client)
        # A node whose clock stands at zero would see its first tick as a jump of decades.
        player.start_clock(bag.start_ns)
        process.configure(client)
        process.activate(client)
        player.wait_for_subscribers()
        yield LiveNode(process, client, player, routes)


def run_timed(bag: Bag, settings: Settings, rate: float, phase: Phase) -> RunRecord:
    """Play ``bag`` at ``rate`` times its timing while the node decides at its own rate.

    An infinite rate goes as fast as the node follows: after each of its periods the player waits
    for the chunk that was due.
    """
    with live_node(bag, settings) as live:
        client = live.client
        period_ns = round(1e9 / (settings.parameters.config.rate_hz or DEFAULT_HZ))
        follower: Callable[[int], None] = Follower(client.timings, bag.start_ns, period_ns)
        if looks_back(settings):
            follower = ChunkFollower(client.chunks, follower, period_ns)

        def show(seconds: float) -> None:
            recent = statistics(t.total_ms for t in client.timings[-50:])
            note = f"{len(client.chunks)} decisions"
            phase(
                seconds / max(bag.seconds, 1e-9),
                note + (f", {recent['p50']:.1f} ms" if recent else ""),
            )

        def ended() -> bool:
            live.process.check()
            return False

        played = live.player.play(rate, show, ended, follower if math.isinf(rate) else _nothing)
        _collect(live)
        return _record(bag, settings, "timed", rate, live, played)


def _nothing(_: int) -> None:
    """At a pace of its own a replay waits for nobody."""


class Follower:
    """Waits, at the end of every period, for the decision that it made due.

    Args:
        timings: of decisions, as they arrive; some other thread appends.
        start_ns: when the node's first period began.
        period_ns: its length.
    """

    def __init__(self, timings: Sequence[TimingRecord], start_ns: int, period_ns: int) -> None:
        self._timings = timings
        self._period_ns = period_ns
        self._due_ns = start_ns + period_ns
        self._seen = 0

    def __call__(self, time_ns: int) -> None:
        """The node's clock shows ``time_ns``."""
        if time_ns < self._due_ns:
            return
        while self._due_ns <= time_ns:
            self._due_ns += self._period_ns
        limit = time.monotonic() + self._patience_s()
        while len(self._timings) <= self._seen and time.monotonic() < limit:
            time.sleep(0.0005)
        self._seen = len(self._timings)

    def _patience_s(self) -> float:
        """No chunk comes of a decision without inputs: then its time is up."""
        recent = [timing.total_ms for timing in self._timings[-20:]]
        return max(_PATIENCE_S, 4e-3 * max(recent, default=0.0))


class ChunkFollower:
    """Waits for the next chunk behind the end of each, where decisions build on each other.

    Args:
        chunks: as they arrive; some other thread appends.
        first: waits for the first.
        period_ns: in which the node looks whether a chunk is over.
    """

    def __init__(
        self, chunks: Sequence[ChunkRecord], first: Callable[[int], None], period_ns: int
    ) -> None:
        self._chunks = chunks
        self._first = first
        self._period_ns = period_ns
        self._missed = 0  # chunks when the next did not come

    def __call__(self, time_ns: int) -> None:
        """The node's clock shows ``time_ns``."""
        seen = len(self._chunks)
        if not seen:
            self._first(time_ns)
            return
        time.sleep(_LOOK_S)
        due = time_ns >= self._chunks[-1].end_ns + self._period_ns
        if not due or seen == self._missed:
            return
        limit = time.monotonic() + _CHUNK_S
        while len(self._chunks) == seen and time.monotonic() < limit:
            time.sleep(0.0005)
        if len(self._chunks) == seen:
            self._missed = seen


def looks_back(settings: Settings) -> bool:
    """Whether the decisions of its policy build on each other."""
    return find_policy(settings.parameters.config.policy).looks_back


def run_steps(
    bag: Bag,
    settings: Settings,
    phase: Phase,
    limit: int | None = None,
    then: Callable[[LiveNode], None] = lambda live: None,
) -> tuple[RunRecord, list[ChunkRecord]]:
    """Decide step by step through ``bag``, at most ``limit`` times.

    Returns the record, and the chunks as the node answered them. ``then`` is called with the node
    still active.
    """
    start = time.monotonic()
    rate_hz = settings.parameters.config.rate_hz or DEFAULT_HZ
    with live_node(bag, settings, rate_hz=0.0) as live:
        stepper, malformed = Stepper(live.client, live.player), live.player.malformed

        def told(count: int, step: Step) -> None:
            share = (step.time_ns - bag.start_ns) * 1e-9 / max(bag.seconds, 1e-9)
            phase(min(1.0, max(share, count / limit if limit else 0.0)), f"{count} decisions")

        if looks_back(settings):
            chunks = stepper.walk(sound_messages(bag, live.routes, malformed), limit, told)
        else:
            chunks = stepper.run(steps(bag, live.routes, rate_hz, malformed), limit, told)
        then(live)
        _collect(live)
        seconds = time.monotonic() - start
        played = PlayRecord(dict(live.player.sent), seconds, malformed=dict(malformed))
        return _record(bag, settings, "step", 0.0, live, played), chunks


def _collect(live: LiveNode) -> None:
    """Stop deciding, then wait for the counters of the whole run to arrive."""
    time.sleep(0.2)  # the last decision and its messages are still on their way
    live.client.deactivate()
    live.client.wait_for_diagnostics()


def _record(
    bag: Bag, settings: Settings, mode: str, rate: float, live: LiveNode, played: PlayRecord
) -> RunRecord:
    return RunRecord(
        bag=str(bag.path),
        parameters=str(settings.parameters.path),
        mode=mode,
        rate=rate,
        recorded_seconds=bag.seconds,
        chunks=tuple(live.client.chunks),
        timings=tuple(live.client.timings),
        play=played,
        diagnostics={name: dict(values) for name, values in live.client.diagnostics.items()},
    )
