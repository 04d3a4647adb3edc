"""What capsules cost and save: each way back to the next action, with a check of its bits.

A session decides, is saved and acts: that action is what every way must repeat to the bit. Between
the ways another session, with another instruction, writes all over the buffers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
import torch

from ..contract import Contract
from ..engine import Engine
from ..load import MAIN, LoadOptions, configuration, load
from ..policies import find_policy
from ..session import NOISE, Decision, Session, noise_for
from ..weights import open_weights
from .case import Case, percentiles
from .latency import shaped
from .scene import OBSERVATIONS, PROMPT, look_back, observations

_T = TypeVar("_T")
_OTHER, _BRANCH, _MARK = "other", "branch", "mark"
_OTHER_PROMPT = "open the drawer"
_WARM_UP = {"cuda": 2, "cpu": 0}  # on the CPU nothing is timed that counts
#: The ways to the next action whose bits are compared.
WAYS = ("restored", "forked", "from_host", "from_file", "rebuilt", "reused", "recomputed")
#: The same where decisions build on each other.
EPISODE_WAYS = ("restored", "forked", "from_host", "from_file", "rebuilt")
#: Told how many trials are done, and of how many: at first none, once all is loaded.
Told = Callable[[int, int], None]


@dataclass
class CapsuleResult:
    """What was measured of one case.

    Attributes:
        times: by name, each with its unit at the end: one number a trial.
        equal: of every way, in how many trials its actions had equal bits.
        nbytes, file_bytes: of a capsule, and of its file.
        chunks: decisions of the episode that it is of, where decisions build on each other.
        library: digest of the kernels.
    """

    case: Case
    device: str
    precision: str
    library: str
    nbytes: int = 0
    file_bytes: int = 0
    trials: int = 0
    chunks: int = 0
    times: dict[str, list[float]] = field(default_factory=dict, repr=False)
    equal: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WAYS, 0))

    @property
    def bit_exact(self) -> bool:
        """Whether every way had equal bits in every trial."""
        return all(count == self.trials for count in self.equal.values())

    def to_json(self) -> dict[str, Any]:
        """The case as it goes into a result file."""
        found = {name: percentiles(values) for name, values in self.times.items()}
        median = {name: float(np.median(values)) for name, values in self.times.items()}
        again = {}
        if "reuse_ms" in median:
            ratio = round(median["recompute_ms"] / median["reuse_ms"], 3)
            again = {"recompute_ratio": ratio}
        return {
            "views": self.case.views,
            "prompt_tokens": self.case.prompt_tokens,
            "horizon": self.case.horizon,
            "steps": self.case.steps,
            "precision": self.precision,
            "bytes": self.nbytes,
            "file_bytes": self.file_bytes,
            **found,
            "restored_speedup": round(median["rebuild_ms"] / median["restored_ms"], 3),
            **again,
            **({"chunks": self.chunks} if self.chunks else {}),
            "trials": self.trials,
            "equal": dict(self.equal),
            "bit_exact": self.bit_exact,
        }


class StepTables:
    """What a policy tabulates of the sampler's steps when weights are packed, to be made again.

    Their weights are kept where the tables are, so that nothing but the arithmetic is repeated.
    """

    def __init__(self, session: Session, options: LoadOptions) -> None:
        policy = find_policy(options.policy)
        _, self._config = configuration(options)
        self._measures = policy.measures
        self._tables = {name: session.engine.buffers[name] for name in self._measures.tables}
        place = next(iter(self._tables.values())).device
        source = open_weights(options.checkpoint, policy.tensors(self._config))
        names = self._measures.table_tensors(self._config)
        self._kept = {name: source.get(name).float().to(place) for name in names}
        self.digest = source.digest
        self.fill()  # as it will be made again: on the device, and not where weights were packed
        self._first = {name: table.clone() for name, table in self._tables.items()}

    def names(self) -> list[str]:
        """Of the tensors that it keeps."""
        return list(self._kept)

    def get(self, name: str) -> torch.Tensor:
        """One of them."""
        return self._kept[name]

    def fill(self) -> None:
        """Make the tables again."""
        with torch.inference_mode():
            self._measures.fill_tables(self._config, self, self._tables)
        self._wait()

    def clear(self) -> None:
        """Leave nothing in the tables."""
        for table in self._tables.values():
            table.zero_()
        self._wait()

    def is_as_first(self) -> bool:
        """Whether the tables have the bits that they had at the beginning."""
        return all(torch.equal(table, self._first[name]) for name, table in self._tables.items())

    def _wait(self) -> None:
        for table in self._tables.values():
            _wait_for_torch(table)


def measure(
    case: Case, options: LoadOptions, trials: int, told: Told = lambda *_: None
) -> CapsuleResult:
    """Measures one case on a plan of its own.

    Args:
        case: the shape.
        options: the plan, but for the sizes that the case has.
        trials: how often everything is timed and compared, behind some that are not.
        told: how far it is.

    Raises what :func:`load` raises.
    """
    options = replace(
        shaped(options, case),
        prompt=PROMPT,
        max_sessions=3,
        capsule_slots=1,
        host_slots=1,
    )
    session = load(options)
    engine = session.engine
    try:
        result = CapsuleResult(case, engine.device.name, options.precision, engine.device.library)
        alone = session.contract.history is None
        tables = StepTables(session, options) if alone else None
        with tempfile.TemporaryDirectory(prefix="flashrt-") as folder:
            kind = _Run if alone else _EpisodeRun
            run = kind(engine, case, tables, Path(folder) / "capsule")
            if not alone:
                result.equal, result.chunks = dict.fromkeys(EPISODE_WAYS, 0), run.chunks
            told(0, trials)
            for index in range(_WARM_UP[options.device]):
                run.trial(index)
            run.found = result
            for index in range(trials):
                run.trial(index)
                told(index + 1, trials)
        return result
    finally:
        engine.close()


class _Run:
    """The trials of one case; what they find goes into ``found``."""

    def __init__(self, engine: Engine, case: Case, tables: StepTables | None, path: Path) -> None:
        self.found = CapsuleResult(case, "", "", "")  # of the warm-up, which nobody reads
        self.found.equal |= dict.fromkeys(EPISODE_WAYS, 0)
        self._engine = engine
        self._tables = tables
        self._path = path
        self._other = engine.create_session(_OTHER, seed=1, prompt=_OTHER_PROMPT)
        self._seen = observations(engine.session(MAIN), case)
        history = engine.contract.history
        #: Of an episode: until the memory is full, and its oldest part gives way once.
        self.chunks = history.period + 1 if history is not None else 0
        self._index = 0

    def trial(self, index: int) -> None:
        """Everything once."""
        self._index = index
        self.found.trials += 1
        engine, store, main = self._engine, self._engine.store, self._engine.session(MAIN)
        observation = self._seen[index % OBSERVATIONS]
        main.decide(observation)
        info = self._timed("snapshot_us", lambda: main.snapshot(_MARK))
        self.found.nbytes = info.nbytes
        expected = main.act()
        noise = _noise(engine.contract, main, expected.index)

        self._dirty(1)
        decision = self._timed("restored_ms", lambda: (main.restore(_MARK), main.act())[1])
        self._compare("restored", decision, expected)
        self._timed("restore_us", lambda: main.restore(_MARK))
        self._dirty(6)
        self._timed("switch_us", lambda: main.restore(_MARK))

        self._dirty(2)
        branch = self._timed("fork_us", lambda: engine.fork(_BRANCH, capsule=_MARK))
        self._compare("forked", branch.act(), expected)
        engine.drop_session(_BRANCH)

        self._timed("to_host_us", lambda: store.to_host(_MARK))
        self._dirty(3)
        main.restore(_MARK)
        self._compare("from_host", main.act(), expected)
        self._timed("restore_from_host_us", lambda: main.restore(_MARK))
        self._timed("to_device_us", lambda: store.to_device(_MARK))

        size = self._timed("file_write_ms", lambda: store.write_file(_MARK, self._path))
        self.found.file_bytes = size
        store.drop(_MARK)
        self._timed("file_read_ms", lambda: store.read_file(self._path))
        self._dirty(4)
        main.restore(_MARK)
        self._compare("from_file", main.act(), expected)

        engine.drop_session(MAIN)  # nothing of it is left: prompt and context are made anew
        main = engine.create_session(MAIN, prompt=PROMPT)
        self._dirty(5)
        decision = self._timed("rebuild_ms", lambda: main.decide(observation, noise=noise))
        self._compare("rebuilt", decision, expected)
        self._reuse(main, index, noise)

    def _reuse(self, main: Session, index: int, noise: np.ndarray[Any, Any]) -> None:
        """The next observation, with what does not depend on it kept, and made again."""
        observation = self._seen[(index + 1) % OBSERVATIONS]
        expected = main.decide(observation, noise=noise)
        main.decide(self._seen[(index + 2) % OBSERVATIONS])
        decision = self._timed("reuse_ms", lambda: main.decide(observation, noise=noise))
        self._compare("reused", decision, expected)
        main.decide(self._seen[(index + 2) % OBSERVATIONS])
        tables = self._tables
        assert tables is not None
        tables.clear()  # what is not made again would be seen
        _wait_for_torch(self._engine.buffers["prompt_embedding"].zero_())

        def recompute() -> Decision:
            began = perf_counter()
            main.run("prompt")
            between = perf_counter()
            tables.fill()
            self._add("prompt_ms", (between - began) * 1e3)
            self._add("step_tables_ms", (perf_counter() - between) * 1e3)
            return main.decide(observation, noise=noise)

        decision = self._timed("recompute_ms", recompute)
        # Bits of the table too: one that stays wrong is wrong in all decisions alike.
        self._compare("recomputed", decision, expected, also=tables.is_as_first())

    def _dirty(self, offset: int) -> None:
        """Let the other session use the buffers."""
        self._other.decide(self._seen[(self._index + offset) % OBSERVATIONS])

    def _compare(self, way: str, found: Decision, expected: Decision, *, also: bool = True) -> None:
        same = also and found.raw.tobytes() == expected.raw.tobytes()
        same = same and found.actions.tobytes() == expected.actions.tobytes()
        self.found.equal[way] += same

    def _timed(self, name: str, call: Callable[[], _T]) -> _T:
        """Times ``call`` until the device has done it."""
        device = self._engine.device
        device.synchronize()
        began = perf_counter()
        value = call()
        device.synchronize()
        self._add(name, (perf_counter() - began) * (1e6 if name.endswith("_us") else 1e3))
        return value

    def _add(self, name: str, value: float) -> None:
        self.found.times.setdefault(name, []).append(value)


class _EpisodeRun(_Run):
    """The same where decisions build on each other: a capsule is what is left of an episode.

    Rebuilding it is the whole episode once more, from what was seen and the noise of then.
    """

    def trial(self, index: int) -> None:
        """Everything once."""
        self._index = index
        self.found.trials += 1
        engine, store = self._engine, self._engine.store
        engine.drop_session(MAIN)
        main = engine.create_session(MAIN, prompt=PROMPT)
        self._walk(main, self.chunks)
        info = self._timed("snapshot_us", lambda: main.snapshot(_MARK))
        self.found.nbytes = info.nbytes
        expected = self._walk(main, 1)

        self._dirty(1)
        self._timed("switch_us", lambda: main.restore(_MARK))
        self._compare("restored", self._timed("restored_ms", lambda: self._walk(main, 1)), expected)
        self._timed("restore_us", lambda: main.restore(_MARK))

        self._dirty(2)
        branch = self._timed("fork_us", lambda: engine.fork(_BRANCH, capsule=_MARK))
        self._compare("forked", self._walk(branch, 1), expected)
        engine.drop_session(_BRANCH)

        self._timed("to_host_us", lambda: store.to_host(_MARK))
        self._dirty(3)
        self._timed("restore_from_host_us", lambda: main.restore(_MARK))
        self._compare("from_host", self._walk(main, 1), expected)
        self._timed("to_device_us", lambda: store.to_device(_MARK))

        size = self._timed("file_write_ms", lambda: store.write_file(_MARK, self._path))
        self.found.file_bytes = size
        store.drop(_MARK)
        self._timed("file_read_ms", lambda: store.read_file(self._path))
        self._dirty(4)
        main.restore(_MARK)
        self._compare("from_file", self._walk(main, 1), expected)
        store.drop(_MARK)

        engine.drop_session(MAIN)
        main = engine.create_session(MAIN, prompt=PROMPT)
        self._dirty(5)
        decision = self._timed("rebuild_ms", lambda: self._walk(main, self.chunks + 1))
        self._compare("rebuilt", decision, expected)

    def _walk(self, session: Session, turns: int) -> Decision:
        """So many further decisions of the episode; the last one."""
        for _ in range(turns):
            observation = self._seen[session.turn % OBSERVATIONS]
            look_back(session, observation)
            decision = session.decide(observation)
        return decision

    def _dirty(self, offset: int) -> None:
        self._other.restart()
        super()._dirty(offset)


def _wait_for_torch(buffer: torch.Tensor) -> None:
    """Wait for what torch does to a buffer: on a GPU it has a stream of its own."""
    if buffer.is_cuda:
        torch.cuda.synchronize()


def _noise(contract: Contract, session: Session, index: int) -> np.ndarray[Any, Any]:
    return noise_for(session.host_state().seed, index, contract.input(NOISE).shape)
