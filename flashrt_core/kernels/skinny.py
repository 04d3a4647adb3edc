"""Launch plans of products of few rows with a weight that is read once (few_rows.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .launch import Launcher, TensorMap
from .low_bit import no_kernel

#: Generations with thread block clusters and more than 200 KiB of shared memory a block.
LARGE_CLUSTERS = (9, 10, 11)
#: Shared memory of a block beside which a multiprocessor of Hopper (228 KiB, of which each block
#: costs one) has no room for another.
_OVER_HALF = 115_728
#: The carveout of the int8 kernels for a few rows that follow each other in a layer. One that
#: wants a multiprocessor's memory divided otherwise than the kernel in front may have to wait until
#: that is gone, and fetches its weights late. These 132 KiB hold one block of gate and up and
#: leave a cache for weights on their way to registers, which are slow where it is small.
SIDE_BY_SIDE = 58


@dataclass(frozen=True)
class SkinnyPlan:
    """One built kernel.

    Attributes:
        kernel: its entry.
        depth: K, the width of a weight row.
        tokens: most rows of x.
        rows: weight rows that a cluster makes; the weight has a multiple of them.
        shared_bytes: dynamic shared memory; the source asserts the same number.
        threads: of a block.
        cluster: blocks that split K between them.
        tiles: the kernel takes the weight as a map of tiles.
        mapped: the kernel takes x as a map of tiles, and no stride of its rows.
        alone: blocks are kept off each other's multiprocessor, by asking for more shared memory
            than they use, so that those of the kernels in front and behind find room beside each.
            A choice made kernel by kernel, in the whole graph: most lose more by starting later.
        carveout: as of :meth:`Launcher.launch`.
        run: outputs of a run whose sum of squares its form ``_squares`` leaves; 0: it has none.

    Kernels named ``_cluster`` are for the generations above, those named ``_sm90`` for one of them;
    those named ``_hopper`` were built for that one alone.
    """

    kernel: str
    depth: int
    tokens: int
    rows: int
    shared_bytes: int
    threads: int = 256
    cluster: int = 1
    tiles: bool = False
    mapped: bool = False
    alone: bool = False
    carveout: int | None = None
    run: int = 0

    def fits(self, launcher: Launcher, tokens: int, rows: int, depth: int) -> bool:
        """Whether the kernel can make this product on this GPU."""
        if self.kernel.endswith(("_sm90", "_hopper")):
            able = launcher.architecture == 90
        else:
            able = launcher.architecture // 10 in LARGE_CLUSTERS or "_cluster" not in self.kernel
        return able and depth == self.depth and tokens <= self.tokens and rows % self.rows == 0

    def with_squares(self) -> SkinnyPlan:
        """The form of this kernel that leaves sums of squares."""
        return replace(self, kernel=self.kernel.replace("linear_", "linear_squares_", 1))

    def into_fp8(self) -> SkinnyPlan:
        """The form of this kernel with E4M3 results."""
        return replace(self, kernel=self.kernel.replace("_sm90", "_into_fp8_sm90"))

    def weight(self, weight: Tensor) -> Tensor | TensorMap:
        """The argument for a packed weight: itself, or tiles of a block's rows by 128 bytes."""
        return _tiles(weight, self.rows) if self.tiles else weight

    def x(self, x: Tensor) -> Tensor | TensorMap:
        """The argument for x: itself, or tiles of all its rows by 128 bytes, with zeros behind."""
        return _tiles(x, self.tokens) if self.mapped else x

    def x_strides(self, x: Tensor) -> tuple[int, ...]:
        """What of the strides of ``x`` the kernel is given: that of its rows, or nothing."""
        return () if self.mapped else (x.stride(0),)

    def launch(self, launcher: Launcher, rows: int, args: Sequence[object]) -> None:
        """One cluster for each ``self.rows`` of the weight's ``rows``."""
        launcher.launch(
            self.kernel,
            rows // self.rows * self.cluster,
            self.threads,
            args,
            shared_bytes=max(self.shared_bytes, _OVER_HALF if self.alone else 0),
            cluster=self.cluster if self.cluster > 1 else None,
            carveout=self.carveout,
        )


def _tiles(matrix: Tensor, box_rows: int) -> TensorMap:
    """Tiles of so many rows by 128 bytes."""
    (rows, depth), size = matrix.shape, matrix.element_size()
    box = (box_rows, 128 // size)
    return TensorMap(matrix.data_ptr(), rows, depth, matrix.stride(0), *box, element_bytes=size)


@dataclass
class Squares:
    """Sums of squares of runs of the outputs of a product, for a kernel behind it that has norms of
    whole rows in front.

    Attributes:
        width: outputs that a norm is over.
        columns: outputs of which sums are wanted, from the first; a multiple of ``width``.
        values: [M, columns / run] float32, once :meth:`place` has found a place for them.
    """

    width: int
    columns: int
    values: Tensor | None = None

    #: Most runs of a norm that kernels add up, a multiple of four of them.
    MOST = 128

    def fits(self, plan: SkinnyPlan) -> bool:
        """Whether a kernel leaves sums that add up to those of the norms."""
        whole = plan.run > 0 and self.width % (4 * plan.run) == 0
        return whole and self.width // plan.run <= self.MOST

    def place(self, launcher: Launcher, plan: SkinnyPlan, tokens: int) -> Tensor:
        """Where the kernel leaves them: scratch memory of the device."""
        runs = self.columns // plan.run
        room = launcher.workspace(2 * tokens * runs)  # of bf16
        self.values = room.view(torch.float32).view(tokens, runs)
        return self.values

    def sums(self) -> Tensor:
        """What the product has left."""
        assert self.values is not None, "launched"
        return self.values


def choose_plan(
    plans: Sequence[SkinnyPlan], launcher: Launcher, tokens: int, rows: int, depth: int
) -> SkinnyPlan | None:
    """The first plan that fits; None where the product needs another way."""
    fitting = (plan for plan in plans if plan.fits(launcher, tokens, rows, depth))
    return next(fitting, None)


def busiest(
    plans: Sequence[SkinnyPlan],
    launcher: Launcher,
    tokens: int,
    rows: int,
    depth: int,
    *,
    room: int = 1,
) -> SkinnyPlan | None:
    """The plan of most blocks that all run at once; None where none fits.

    More blocks share the weight more evenly; a second turn of them costs more than that.

    Args:
        plans: of built kernels.
        launcher: of the device.
        tokens: rows of x.
        rows, depth: of the weight.
        room: blocks that a multiprocessor holds.
    """
    fitting = [plan for plan in plans if plan.fits(launcher, tokens, rows, depth)]

    def blocks_of(plan: SkinnyPlan) -> int:
        return rows // plan.rows * plan.cluster

    at_once = [plan for plan in fitting if blocks_of(plan) <= room * launcher.multiprocessors]
    return max(at_once, key=blocks_of, default=min(fitting, key=blocks_of, default=None))


def whole_plans(
    op: str,
    plans: Sequence[SkinnyPlan],
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    scales_of_activations: tuple[Tensor | None, ...],
) -> list[tuple[slice, SkinnyPlan]]:
    """Runs of the rows of ``x``, each with a plan for it; empty where no kernel reads this weight.

    Args:
        op: named in errors.
        plans: of kernels with int8 weights, best first.
        launcher: of the device.
        x: [M, K] bf16.
        weight: [N, K] int8.
        scales_of_activations: what the op was given; all None, as there is no kernel for others.

    Raises:
        ContractError: activations are quantised.
    """
    tokens, (rows, depth) = x.shape[0], weight.shape
    run, plan = tokens, choose_plan(plans, launcher, tokens, rows, depth)
    while plan is None and run > 1:
        run = -(-run // 2)
        plan = choose_plan(plans, launcher, run, rows, depth)
    if any(scale is not None for scale in scales_of_activations):
        raise no_kernel(op, expected="bfloat16 activations", got="float8_e4m3fn ones")
    if plan is None or weight.dtype is not torch.int8 or not weight.is_contiguous():
        return []
    starts = range(0, tokens, run)
    return [(slice(start, min(start + run, tokens)), plan) for start in starts]
