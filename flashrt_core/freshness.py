"""Which inputs every retained value was made from, and whether a stage may use it.

Each write of an input starts a new epoch. A stage that ran remembers the epochs of all inputs that
reached it. A stage may run when every window it reads was written and every prerequisite was made
from the epochs that are current now. The paper leaves this rule to the host (appendix A.1, "caller
responsibilities"); here the engine enforces it. Pure bookkeeping, one ledger a session.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from .contract import Contract, OutputSpec, Rate, ShapeKey, StageSpec
from .errors import StaleStateError


@dataclass(frozen=True)
class Lineage:
    """What the retained values were made from: stage -> input -> epoch. Travels in a capsule.

    Nobody changes it, so that everybody may keep it.

    Attributes:
        made: epochs behind what every stage left.
        newer: the epoch of each input that has changed since something was made from it. What is
            stale stays so wherever the values go.
        newest: the newest epoch that is named, 0 where none is.
    """

    made: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    newer: Mapping[str, int] = field(default_factory=dict)
    newest: int = 0

    @classmethod
    def of(cls, made: Mapping[str, Mapping[str, int]], epochs: Mapping[str, int | None]) -> Lineage:
        """That of some values, of inputs with these epochs, None or 0 where one is absent.

        What is newest is found now: a host waits for a restore.
        """
        newer, newest = {}, 0
        for named in made.values():
            for name, epoch in named.items():
                now = epochs.get(name)
                if now and now != epoch:
                    newer[name] = now
                    newest = max(newest, now)
                if epoch > newest:
                    newest = epoch
        return cls(made, newer, newest)

    def older(self, stage: str) -> list[str]:
        """Inputs that have changed since ``stage`` ran."""
        made = self.made[stage]
        return [name for name, epoch in self.newer.items() if made.get(name, epoch) != epoch]

    def current(self, contract: Contract) -> bool:
        """Whether what the last stage decides on is there, and made from the newest inputs."""
        return all(
            stage in self.made and not self.older(stage) for stage in context_stages(contract)
        )


def context_stages(contract: Contract) -> list[str]:
    """Those that make what the last stage decides on; itself where nothing else does."""
    last = contract.decision_stages[-1]
    context = [name for name in last.requires if not contract.stage(name).transform]
    return context or [last.name]


@dataclass(frozen=True)
class Page:
    """All that a ledger knows, for who keeps it meanwhile.

    Attributes:
        clock: the newest epoch.
        epochs: of every input; None where it is absent.
        announced: inputs that have a new value which is not in the window, or is not any more.
        lineage: what the retained values were made from.
    """

    clock: int
    epochs: Mapping[str, int | None]
    announced: frozenset[str]
    lineage: Lineage


class Ledger:
    """Epochs of one session.

    Args:
        contract: of its plan.
        lineage: what the values that are there already were made from.

    Attributes:
        told: the lineage as it was last asked for; None once it is no longer true.
        replayed: stages whose outputs are in their windows, and of this session.

    An input is *absent* until it is written, and again after its window was lost (a restore, or
    another session on the same buffers). An absent input contradicts nothing: values made from an
    older epoch of it may still be used, but no stage may read its window. Where its last value had
    made something stale before it was lost, that stays stale: the input counts as announced.

    An interrupt may come between any two steps. So what is no longer true is given up first, and
    what is true from now on is put in its place at once.
    """

    def __init__(self, contract: Contract, lineage: Lineage) -> None:
        self._contract = contract
        # These are never changed, only replaced: so they are shared, and nothing is copied where a
        # host waits for a fork or a restore.
        self._epoch: Mapping[str, int | None]
        self._announced: frozenset[str]
        self._made: Mapping[str, Mapping[str, int]]
        self.told: Lineage | None
        self.replayed: frozenset[str]
        self._clock = 0
        self.restore(lineage)

    def written(self, names: Collection[str]) -> None:
        """The windows of ``names`` hold new values."""
        self._begin(names)
        if self._announced:
            self._announced = self._announced.difference(names)

    def announce(self, rate: Rate) -> None:
        """New values for all inputs of ``rate`` are known but not yet in their windows.

        What was made from the old ones is stale from now on.
        """
        self.tear([spec.name for spec in self._contract.inputs if spec.rate is rate])

    def tear(self, names: Collection[str]) -> None:
        """The windows of ``names`` do not hold their newest values: a write did not end, or is
        about to begin.
        """
        self._announced = self._announced.union(names)
        self._begin(names)

    def mend(self, names: Collection[str]) -> None:
        """What was torn is whole: the windows of ``names`` hold what was written since."""
        self._announced = self._announced.difference(names)

    def _begin(self, names: Collection[str]) -> None:
        """New epochs: what was made from the old values of ``names`` is stale."""
        epoch = {**self._epoch}
        for name in names:
            self._clock += 1
            epoch[name] = self._clock
        self.told = None
        self._epoch = epoch

    def lose_windows(self) -> None:
        """Every window may hold foreign values."""
        self.replayed = frozenset()
        self._announced = self._announced.union(self.lineage().newer)
        known = {name: self._epoch[name] for name in self._announced}
        self._epoch = {**self._contract.absent, **known} if known else self._contract.absent

    def ran(self, stage: StageSpec) -> None:
        """``stage`` has replayed on the current windows and its prerequisites' values. What is made
        of an old value of an input and of a new one is as old as the old one.
        """
        lineage: dict[str, int] = {}
        for name in stage.requires:
            for source, made in self._made[name].items():
                if made < lineage.setdefault(source, made):
                    lineage[source] = made
        for spec in self._contract.inputs_of(stage):
            epoch = self._epoch[spec.name]
            if epoch is not None and epoch < lineage.setdefault(spec.name, epoch):
                lineage[spec.name] = epoch
        self.told = None
        self._made = {**self._made, stage.name: lineage}
        self.replayed = self.replayed.union((stage.name,))

    def lose_outputs(self) -> None:
        """Nobody shall use the results that are in the windows."""
        self.replayed = frozenset()

    def forget(self, stages: Iterable[str] | None = None) -> None:
        """Nothing retained of ``stages``, None for all, can be trusted: a replay failed, or the
        shape changed.
        """
        made, lost = self._made, self._made if stages is None else set(stages)
        self.told, self.replayed = None, frozenset()
        self._made = {name: epochs for name, epochs in made.items() if name not in lost}

    def reshape(self, old: ShapeKey | None, new: ShapeKey) -> None:
        """Another shape is in use: what it is not made for is lost, and values that were checked
        by other bounds count as unwritten.
        """
        bound = self._contract.bound
        inputs = self._contract.inputs
        self.tear([s.name for s in inputs if bound(old, s.buffer) != bound(new, s.buffer)])
        self.forget(self._contract.of_shape)

    def announced(self, names: Iterable[str]) -> bool:
        """Whether a new value of any of ``names`` is known but not yet in its window."""
        return not self._announced.isdisjoint(names)

    def is_made(self, stage: str) -> bool:
        """Whether ``stage`` has run and its values are still held."""
        return stage in self._made

    def lineage(self) -> Lineage:
        """What the retained values were made from; the same object as long as it is true."""
        if self.told is None:
            self.told = Lineage.of(self._made, self._epoch)
        return self.told

    def page(self) -> Page:
        """Everything."""
        return Page(self._clock, self._epoch, self._announced, self.lineage())

    def turn_to(self, page: Page) -> None:
        """Go on from what somebody else kept; he may have used every output's window."""
        self.replayed = frozenset()
        self._clock = page.clock
        self._epoch = page.epochs
        self._announced = page.announced
        self._made, self.told = page.lineage.made, page.lineage

    def restore(self, lineage: Lineage) -> None:
        """The retained values are now those of ``lineage``; every window is absent."""
        self.replayed = frozenset()
        self._made, self.told = lineage.made, lineage
        absent, newer = self._contract.absent, lineage.newer
        self._announced = frozenset(newer)
        self._epoch = {**absent, **newer} if newer else absent
        # A later write must never reuse an epoch that the lineage already names.
        newest = lineage.newest
        if newest > self._clock:
            self._clock = newest

    def check(
        self, stage: StageSpec, *, allow_stale: bool = False, ran: Iterable[str] = ()
    ) -> None:
        """Raise StaleStateError unless ``stage`` may run now.

        Args:
            stage: the stage about to run.
            allow_stale: accept prerequisites made from older inputs (never missing ones).
            ran: stages that will have run just before it, in the same replay.
        """
        for spec in self._contract.inputs_of(stage):
            if spec.name in self._announced:
                raise StaleStateError(
                    f"stage {stage.name!r} reads input {spec.name!r}",
                    expected="its new value in the window",
                    got="none of it: it was announced only, or lost with the window",
                    remedy="observe() before running the stage",
                )
            if self._epoch[spec.name] is None:
                raise StaleStateError(
                    f"stage {stage.name!r} reads input {spec.name!r}",
                    expected="a value written for this session",
                    got="none since the start, a restore or a session switch",
                    remedy="write a new observation first",
                )
        for name in stage.requires:
            if name in ran:
                continue
            if name not in self._made:
                raise StaleStateError(
                    f"stage {stage.name!r}",
                    expected=f"stage {name!r} to have run",
                    got="no retained result of it",
                    remedy=f"run {name!r} first",
                )
            older = self._older(name)
            if older and not allow_stale:
                raise StaleStateError(
                    f"stage {stage.name!r} would use {name!r}",
                    expected="a result made from the current inputs",
                    got=f"one made before the last write of {sorted(older)}",
                    remedy=f"run {name!r} again, or pass allow_stale=True",
                )

    def check_output(self, output: OutputSpec, *, allow_stale: bool = False) -> None:
        """Raise StaleStateError unless the window of ``output`` holds a result of this session.

        ``allow_stale``: accept one made from older inputs (never none, or somebody else's).
        """
        writers = [each.name for each in self._contract.stages if output.buffer in each.writes]
        if not writers or writers[-1] not in self.replayed:
            raise StaleStateError(
                f"output {output.name!r}",
                expected="a result of this session",
                got="none since the start, a restore, a failure or a session switch",
                remedy="decide first",
            )
        older = self._older(writers[-1])
        if older and not allow_stale:
            raise StaleStateError(
                f"output {output.name!r}",
                expected="a result made from the current inputs",
                got=f"one made before the last write of {sorted(older)}",
                remedy="decide again, or pass allow_stale=True",
            )

    def _older(self, stage: str) -> list[str]:
        """Inputs that have changed since ``stage`` ran."""
        now = self._epoch
        return [
            source
            for source, epoch in self._made[stage].items()
            if now[source] is not None and now[source] != epoch
        ]
