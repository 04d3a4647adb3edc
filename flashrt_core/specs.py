"""The vocabulary of a contract: what a buffer, input, output, stage and region are declared to be.

Pure data without torch or numpy; :mod:`flashrt_core.contract` checks how they fit together.
Source: paper section 3.4 and appendix A.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import NamedTuple, Protocol, TypeVar

from .errors import ContractError


class DType(StrEnum):
    """Element types a buffer may have."""

    F32 = "float32"
    F16 = "float16"
    BF16 = "bfloat16"
    F8E4M3 = "float8_e4m3fn"
    I8 = "int8"
    U8 = "uint8"
    I32 = "int32"
    I64 = "int64"

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return {"float32": 4, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2}.get(
            self.value, 1
        )


class Role(StrEnum):
    """Who may change a buffer, and how long its contents matter."""

    STATIC = "static"  # prepared at configure, never written again
    SWAP = "swap"  # windows the host writes or reads between replays
    STATE = "state"  # written by a stage and needed by a later stage or decision
    SCRATCH = "scratch"  # meaningless outside the stage that writes it


class Update(StrEnum):
    """How the host may change an input."""

    SWAP = "swap"  # write the window
    STAGED = "staged"  # write the window, then run the declared transform
    SETUP = "setup"  # only while the plan is being prepared


class Rate(StrEnum):
    """What makes a value change; the slowest that applies."""

    PROMPT = "prompt"
    OBSERVATION = "observation"
    STEP = "step"
    CHUNK = "chunk"


class ShapeKey(NamedTuple):
    """The sizes a captured variant is fixed to.

    ``prompt_tokens`` is a bucket: a prompt of that many tokens or fewer fits. ``horizon`` counts
    action rows, ``steps`` denoising steps.
    """

    views: int
    prompt_tokens: int
    horizon: int
    steps: int

    def __str__(self) -> str:
        return (
            f"{self.views} views, {self.prompt_tokens} tokens, "
            f"horizon {self.horizon}, {self.steps} steps"
        )


@dataclass(frozen=True)
class BufferSpec:
    """A named buffer at a fixed address; contiguous, row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: Role
    doc: str = ""

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class InputSpec:
    """A value the host provides: the whole of the SWAP buffer ``buffer``.

    ``shorter``: a value may have fewer than ``shape``'s one dimension; what lies behind it in the
    window is of no meaning.
    """

    name: str
    buffer: str
    shape: tuple[int, ...]
    dtype: DType
    update: Update
    rate: Rate
    transform: str | None = None
    unit: str = ""
    doc: str = ""
    shorter: bool = False


@dataclass(frozen=True)
class OutputSpec:
    """A value the host reads: the whole of ``buffer``."""

    name: str
    buffer: str
    shape: tuple[int, ...]
    dtype: DType
    unit: str = ""
    doc: str = ""


@dataclass(frozen=True)
class StageSpec:
    """A captured unit of work.

    ``reads`` and ``writes`` name every buffer it touches except STATIC ones. A transform runs when
    the staged input it belongs to is written; other stages run in a decision, in declared order.
    ``variants``: of a history, how many it has of its own; the last one serves for later turns.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    rate: Rate
    requires: tuple[str, ...] = ()
    transform: bool = False
    doc: str = ""
    variants: int = 1


@dataclass(frozen=True)
class RegionSpec:
    """Restorable bytes of a buffer: ``rows`` runs of ``row_bytes``, ``pitch`` bytes apart."""

    name: str
    buffer: str
    offset: int
    row_bytes: int
    rows: int = 1
    pitch: int = 0
    doc: str = ""

    @classmethod
    def whole(cls, buffer: BufferSpec, name: str | None = None, doc: str = "") -> RegionSpec:
        """The region that is all of ``buffer``."""
        return cls(name or buffer.name, buffer.name, 0, buffer.nbytes, doc=doc)

    @classmethod
    def first(cls, buffer: BufferSpec, count: int, doc: str = "") -> RegionSpec:
        """The region that is its first ``count`` rows, of its outermost dimension."""
        row = buffer.nbytes // buffer.shape[0]
        return cls(buffer.name, buffer.name, 0, row * count, doc=doc)

    @property
    def nbytes(self) -> int:
        """Bytes a capsule needs for it."""
        return self.row_bytes * self.rows

    @property
    def end(self) -> int:
        """First byte offset in the buffer behind the region."""
        return self.offset + (self.rows - 1) * self.pitch + self.row_bytes


@dataclass(frozen=True)
class HistorySpec:
    """How the decisions of an episode build on each other.

    A decision of such a policy starts with what was seen and done since the last one. Its number
    in the episode, the turn, says which variant of its stages runs; the last variant is that of all
    later turns.

    Attributes:
        pictures: of every camera that a decision takes, one entry a variant: those seen since the
            decision before, at equal distances, the last one when all its rows were executed.
        rows: of a chunk that are to be executed before the next decision, one entry a variant; they
            are the chunk's last ones.
        stride: executed rows between two pictures.
        pictured: inputs whose first dimension are pictures.
        executed: the input that takes a whole chunk as it was executed, in the network's numbers.
        regions: what a capsule holds behind the first decision, the second, and so on, for every
            shape; behind the last entry they come again from ``period`` entries before.
        period: of ``regions``, 1 or more.
    """

    pictures: tuple[int, ...]
    rows: tuple[int, ...]
    stride: int
    pictured: tuple[str, ...]
    executed: str
    regions: Mapping[ShapeKey, tuple[tuple[RegionSpec, ...], ...]]
    period: int = 1

    @property
    def variants(self) -> int:
        """How many variants of the stages there are."""
        return len(self.pictures)

    def variant(self, turn: int) -> int:
        """The variant of a decision."""
        return min(turn, self.variants - 1)

    def age(self, turn: int) -> int:
        """Which entry of ``regions`` holds behind so many decisions."""
        count = len(next(iter(self.regions.values())))
        entry = max(0, turn - 1)
        if entry < count:
            return entry
        return count - self.period + (entry - count) % self.period


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Spec = TypeVar("Spec", bound=_Named)


def by_name(policy: str, kind: str, specs: Sequence[Spec]) -> dict[str, Spec]:
    """Parts of a policy's contract by their names; ContractError where two have the same."""
    found: dict[str, Spec] = {}
    for spec in specs:
        if spec.name in found:
            raise ContractError(
                f"{kind} of policy {policy!r}", expected="unique names", got=f"{spec.name!r} twice"
            )
        found[spec.name] = spec
    return found


def find(policy: str, kind: str, name: str, known: Mapping[str, Spec]) -> Spec:
    """One of them; ContractError with the known names otherwise."""
    try:
        return known[name]
    except KeyError:
        raise ContractError(
            f"{kind} of policy {policy!r}", expected=f"one of {sorted(known)}", got=repr(name)
        ) from None
