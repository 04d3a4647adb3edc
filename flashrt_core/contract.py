"""The execution contract of a policy as pure data: buffers, inputs, outputs, stages, regions.

A policy builds one :class:`Contract`; construction checks it as a whole and raises
:class:`~flashrt_core.errors.ContractError` on the first contradiction, so that nothing later needs
to ask whether a name exists or a region fits. Owns no memory and imports neither torch nor numpy.
Source: paper section 3.4 and appendix A.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .errors import ContractError, ShapeKeyError
from .specs import (
    BufferSpec,
    DType,
    HistorySpec,
    InputSpec,
    OutputSpec,
    Rate,
    RegionSpec,
    Role,
    ShapeKey,
    StageSpec,
    Update,
    by_name,
    find,
)

__all__ = [
    "BufferSpec",
    "Contract",
    "DType",
    "HistorySpec",
    "InputSpec",
    "OutputSpec",
    "Rate",
    "RegionSpec",
    "Role",
    "ShapeKey",
    "StageSpec",
    "Update",
    "total_bytes",
]


@dataclass(frozen=True)
class Contract:
    """Everything a host may rely on about a policy's execution.

    ``stages`` are in decision order. ``regions`` gives, for every shape, what a capsule holds at
    most. ``history``: how decisions build on each other; None where each stands alone. ``bounds``
    gives, for every shape, the whole numbers that may be in a buffer whose numbers stages take for
    counts, places or indices.
    Raises ContractError at construction when any part contradicts another.
    """

    policy: str
    shapes: tuple[ShapeKey, ...]
    buffers: tuple[BufferSpec, ...]
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    stages: tuple[StageSpec, ...]
    regions: Mapping[ShapeKey, tuple[RegionSpec, ...]]
    history: HistorySpec | None = None
    bounds: Mapping[ShapeKey, Mapping[str, range]] = field(default_factory=dict)
    _buffers: dict[str, BufferSpec] = field(init=False, repr=False, compare=False)
    _inputs: dict[str, InputSpec] = field(init=False, repr=False, compare=False)
    _outputs: dict[str, OutputSpec] = field(init=False, repr=False, compare=False)
    _stages: dict[str, StageSpec] = field(init=False, repr=False, compare=False)
    _inputs_of: dict[str, tuple[InputSpec, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for attribute, specs in (
            ("_buffers", self.buffers),
            ("_inputs", self.inputs),
            ("_outputs", self.outputs),
            ("_stages", self.stages),
        ):
            object.__setattr__(self, attribute, by_name(self.policy, attribute[1:], specs))
        read = {
            stage.name: tuple(spec for spec in self.inputs if spec.buffer in stage.reads)
            for stage in self.stages
        }
        object.__setattr__(self, "_inputs_of", read)
        _check_shapes(self)
        _check_windows(self)
        for index, stage in enumerate(self.stages):
            _check_stage(self, index, stage)
        _check_regions(self)
        _check_bounds(self)
        if self.history is None and any(stage.variants != 1 for stage in self.stages):
            raise ContractError(
                f"stages of policy {self.policy!r}", expected="one variant, without a history"
            )
        if self.history is not None:
            _check_history(self, self.history)

    @cached_property
    def absent(self) -> Mapping[str, None]:
        """Every input, in their order, with None: what a session begins with."""
        return dict.fromkeys(self._inputs)

    def buffer(self, name: str) -> BufferSpec:
        """The buffer called ``name``; ContractError with the known names otherwise."""
        return find(self.policy, "buffer", name, self._buffers)

    def input(self, name: str) -> InputSpec:
        """The input called ``name``; ContractError with the known names otherwise."""
        return find(self.policy, "input", name, self._inputs)

    def output(self, name: str) -> OutputSpec:
        """The output called ``name``; ContractError with the known names otherwise."""
        return find(self.policy, "output", name, self._outputs)

    def stage(self, name: str) -> StageSpec:
        """The stage called ``name``; ContractError with the known names otherwise."""
        return find(self.policy, "stage", name, self._stages)

    @property
    def decision_stages(self) -> tuple[StageSpec, ...]:
        """The stages of one decision, in order; transforms are not among them."""
        return tuple(stage for stage in self.stages if not stage.transform)

    @property
    def of_shape(self) -> tuple[str, ...] | None:
        """Stages whose results are void in another shape; None: all.

        Shapes of a history are other lengths of the prompt, which the past does not have.
        """
        if self.history is None:
            return None
        return tuple(stage.name for stage in self.stages if stage.transform)

    def inputs_of(self, stage: StageSpec) -> tuple[InputSpec, ...]:
        """The inputs whose windows ``stage`` reads itself."""
        return self._inputs_of[stage.name]

    def reaching(self, stage: StageSpec) -> frozenset[str]:
        """The inputs that what ``stage`` leaves was made from, through others as well."""
        names = {stage.name, *_upstream(self, stage)}
        return frozenset(spec.name for name in names for spec in self._inputs_of[name])

    def bound(self, shape: ShapeKey | None, buffer: str) -> range | None:
        """Whole numbers that may be in a buffer in a shape; None: all, or in no shape yet."""
        return None if shape is None else self.bounds.get(shape, {}).get(buffer)

    def shape_for(self, *, views: int, prompt_tokens: int, horizon: int, steps: int) -> ShapeKey:
        """The captured shape with the smallest prompt bucket that holds ``prompt_tokens``.

        Raises ShapeKeyError that lists the captured shapes when none fits.
        """
        fits = [
            key
            for key in self.shapes
            if (key.views, key.horizon, key.steps) == (views, horizon, steps)
            and key.prompt_tokens >= prompt_tokens
        ]
        if not fits:
            raise ShapeKeyError(
                f"shape for policy {self.policy!r}",
                expected="one of [" + "; ".join(str(key) for key in sorted(self.shapes)) + "]",
                got=ShapeKey(views, prompt_tokens, horizon, steps),
                remedy="configure it before activation (prompt_buckets, cameras, horizon, steps)",
            )
        return min(fits)

    @property
    def variants(self) -> int:
        """How many variants of its decision stages are captured."""
        return 1 if self.history is None else self.history.variants

    @property
    def ages(self) -> int:
        """How many lists of regions a shape has."""
        return 1 if self.history is None else len(self.history.regions[self.shapes[0]])

    def variant(self, turn: int) -> int:
        """Which of them a decision of an episode is."""
        return 0 if self.history is None else self.history.variant(turn)

    def age(self, turn: int) -> int:
        """Which of a shape's lists of regions holds behind so many decisions of an episode."""
        return 0 if self.history is None else self.history.age(turn)

    def regions_at(self, shape: ShapeKey, age: int = 0) -> tuple[RegionSpec, ...]:
        """What a capsule of a shape holds at an age."""
        return self.regions[shape] if self.history is None else self.history.regions[shape][age]

    def region_bytes(self) -> int:
        """Bytes of the largest capsule over all shapes and ages."""
        return max(
            sum(region.nbytes for region in self.regions_at(shape, age))
            for shape in self.shapes
            for age in range(self.ages)
        )


def _check_shapes(contract: Contract) -> None:
    if not contract.shapes or len(set(contract.shapes)) != len(contract.shapes):
        raise ContractError(
            f"shapes of policy {contract.policy!r}",
            expected="at least one, all different",
            got=[str(key) for key in contract.shapes],
        )
    for key in contract.shapes:
        if min(key.views, key.prompt_tokens, key.horizon, key.steps) < 1:
            raise ContractError(f"shape {key}", expected="positive sizes")
    for spec in contract.buffers:
        if any(size < 1 for size in spec.shape):
            raise ContractError(f"buffer {spec.name!r}", expected="sizes >= 1", got=spec.shape)


def _check_windows(contract: Contract) -> None:
    taken: dict[str, str] = {}
    for spec in contract.inputs:
        _check_window(contract, "input", spec)
        if contract.buffer(spec.buffer).role is not Role.SWAP:
            raise ContractError(
                f"input {spec.name!r}",
                expected="a swap buffer",
                got=f"{spec.buffer!r} ({contract.buffer(spec.buffer).role})",
            )
        if spec.buffer in taken:
            raise ContractError(
                f"input {spec.name!r}",
                expected="a window of its own",
                got=f"{spec.buffer!r}, the window of {taken[spec.buffer]!r}",
            )
        taken[spec.buffer] = spec.name
        _check_transform(contract, spec)
    for output in contract.outputs:
        _check_window(contract, "output", output)


def _check_window(contract: Contract, kind: str, spec: InputSpec | OutputSpec) -> None:
    buffer = contract.buffer(spec.buffer)
    if (buffer.shape, buffer.dtype) != (spec.shape, spec.dtype):
        raise ContractError(
            f"{kind} {spec.name!r}",
            expected=f"{list(buffer.shape)} {buffer.dtype}, as buffer {buffer.name!r}",
            got=f"{list(spec.shape)} {spec.dtype}",
        )


def _check_transform(contract: Contract, spec: InputSpec) -> None:
    if (spec.update is Update.STAGED) != (spec.transform is not None):
        raise ContractError(
            f"input {spec.name!r}",
            expected="a transform exactly when its update is staged",
            got=f"update {spec.update}, transform {spec.transform!r}",
        )
    if spec.transform is None:
        return
    stage = contract.stage(spec.transform)
    if not stage.transform or spec.buffer not in stage.reads:
        raise ContractError(
            f"input {spec.name!r}",
            expected="a transform stage that reads its window",
            got=f"stage {stage.name!r} (transform={stage.transform}, reads {list(stage.reads)})",
        )


def _check_stage(contract: Contract, index: int, stage: StageSpec) -> None:
    for name in stage.reads + stage.writes:
        contract.buffer(name)
    for name in stage.writes:
        if contract.buffer(name).role is Role.STATIC:
            raise ContractError(
                f"stage {stage.name!r}", expected="no write to static buffers", got=name
            )
    before = {earlier.name for earlier in contract.stages[:index]}
    for name in stage.requires:
        contract.stage(name)
        if name not in before:
            raise ContractError(
                f"stage {stage.name!r}",
                expected="prerequisites declared before it (no cycles)",
                got=repr(name),
            )
    upstream = _upstream(contract, stage)
    for name in stage.reads:
        role = contract.buffer(name).role
        writers = {other.name for other in contract.stages if name in other.writes}
        if role is Role.SCRATCH and name not in stage.writes:
            raise ContractError(
                f"stage {stage.name!r}",
                expected="scratch that it writes itself",
                got=f"{name!r}, written by {sorted(writers)}",
                remedy="give the buffer the role state",
            )
        # With a history, state may come from the decision before.
        missing = set() if contract.history else writers - upstream - {stage.name}
        if role is Role.STATE and (missing or not writers):
            raise ContractError(
                f"stage {stage.name!r} reads state {name!r}",
                expected=f"its writers {sorted(missing) or '(none)'} among its prerequisites",
                got=list(stage.requires),
            )


def _upstream(contract: Contract, stage: StageSpec) -> set[str]:
    found: set[str] = set()
    todo = list(stage.requires)
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo.extend(contract.stage(name).requires)
    return found


def _check_regions(contract: Contract) -> None:
    if set(contract.regions) != set(contract.shapes):
        raise ContractError(
            f"regions of policy {contract.policy!r}",
            expected="a list for every shape",
            got=[str(key) for key in contract.regions],
        )
    state = {spec.name for spec in contract.buffers if spec.role is Role.STATE}
    for key, regions in contract.regions.items():
        by_name(contract.policy, "regions", regions)
        for region in regions:
            _check_region(contract, region)
        bare = state - {region.buffer for region in regions}
        if bare:
            # A capsule that leaves state out would restore silently to something else.
            raise ContractError(
                f"regions for {key}", expected="every state buffer", got=f"no {sorted(bare)}"
            )


def _check_bounds(contract: Contract) -> None:
    for key, bounds in contract.bounds.items():
        for name, allowed in bounds.items():
            dtype = contract.buffer(name).dtype
            whole = dtype in (DType.I8, DType.U8, DType.I32, DType.I64)
            if key not in contract.shapes or not allowed or allowed.step != 1 or not whole:
                raise ContractError(
                    f"bounds of buffer {name!r} for {key}",
                    expected="a range without gaps, of a captured shape, of whole numbers",
                    got=f"{allowed} of {dtype}",
                )


def _check_region(contract: Contract, region: RegionSpec) -> None:
    buffer = contract.buffer(region.buffer)
    if region.offset < 0 or region.row_bytes < 1 or region.rows < 1:
        raise ContractError(
            f"region {region.name!r}", expected="offset >= 0, rows >= 1, bytes >= 1", got=region
        )
    if region.rows > 1 and region.pitch < region.row_bytes:
        raise ContractError(
            f"region {region.name!r}",
            expected=f"pitch >= {region.row_bytes} bytes",
            got=region.pitch,
        )
    if region.end > buffer.nbytes:
        raise ContractError(
            f"region {region.name!r}",
            expected=f"an end within the {buffer.nbytes} bytes of {buffer.name!r}",
            got=f"byte {region.end}",
        )


def _check_history(contract: Contract, history: HistorySpec) -> None:
    def require(holds: bool, what: str, expected: object, got: object) -> None:
        if not holds:
            raise ContractError(
                f"history of policy {contract.policy!r}: {what}", expected=expected, got=got
            )

    counts = (*history.pictures, *history.rows, history.stride, history.period)
    require(len(history.pictures) == len(history.rows), "variants", "as many", len(history.rows))
    require(min(counts) >= 1, "counts", "1 or more", counts)
    executed = contract.input(history.executed)
    require(max(history.rows) <= executed.shape[0], "rows", executed.shape[0], history.rows)
    for name in history.pictured:
        most = contract.input(name).shape[0]
        require(max(history.pictures) <= most, f"pictures of {name!r}", most, history.pictures)
    require(set(history.regions) == set(contract.shapes), "regions", "every shape", "others")
    own = [stage.variants for stage in contract.stages]
    require(1 <= min(own) <= max(own) <= history.variants, "variants", history.variants, own)
    lengths = {len(each) for each in history.regions.values()}
    require(len(lengths) == 1 and min(lengths) >= history.period, "ages", "as many", lengths)
    for ages in history.regions.values():
        for regions in ages:
            by_name(contract.policy, "regions", regions)
            for region in regions:
                _check_region(contract, region)


def total_bytes(buffers: Iterable[BufferSpec], role: Role | None = None) -> int:
    """Bytes of all ``buffers``, or of those with ``role``."""
    return sum(spec.nbytes for spec in buffers if role is None or spec.role is role)
