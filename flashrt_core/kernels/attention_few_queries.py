"""Attention of few rows to a prefix and to each other: which kernel, and its launch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .launch import Launcher, blocks
from .skinny import LARGE_CLUSTERS


@dataclass(frozen=True)
class _ClusterPlan:
    """One built kernel for few queries whose keys are split over a cluster of eight blocks.

    Attributes:
        rows: of the list of queries, a block.
        keys: most keys of all eight blocks.
        shared_bytes: dynamic shared memory; the source asserts the same number.
    """

    rows: int
    keys: int
    shared_bytes: int

    @property
    def kernel(self) -> str:
        """Its entry."""
        return f"attention_few_queries_d256_{self.rows}_{self.keys}_bf16_cluster"


_CLUSTER_PLANS = (
    _ClusterPlan(8, 640, 50_064),
    _ClusterPlan(8, 1024, 74_640),
    _ClusterPlan(16, 640, 59_152),
    _ClusterPlan(16, 1024, 83_728),
    _ClusterPlan(32, 1024, 101_904),
)
#: Clusters of eight blocks that run at the same time, even with one block a multiprocessor.
_CLUSTERS_AT_ONCE = 15


def _choose_cluster(launcher: Launcher, rows: int, keys: int) -> _ClusterPlan | None:
    """The plan with the fewest rows a block that runs at once; None where none takes the keys."""
    if launcher.architecture // 10 not in LARGE_CLUSTERS:
        return None
    plans = [plan for plan in _CLUSTER_PLANS if keys <= plan.keys]
    at_once = (plan for plan in plans if blocks(rows, plan.rows) <= _CLUSTERS_AT_ONCE)
    return next(at_once, max(plans, key=lambda plan: plan.rows, default=None))


def few_queries(
    launcher: Launcher,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    prefix_length: Tensor,
    prefix_rows: int,
    scale: float,
) -> None:
    """Queries of all heads as one list of rows, a few of them a block.

    Args:
        launcher: of the device.
        q, k, v, out, prefix_length, prefix_rows, scale: as of ``attention``, with heads of 256
            numbers, one head of keys, and q and out without gaps.
    """
    rows = q.shape[0] * q.shape[1]
    counts = (rows, prefix_rows, k.shape[0] - prefix_rows, k.stride(0))
    args = (q, k, v, out, prefix_length, *counts, scale)
    plan = _choose_cluster(launcher, rows, k.shape[0])
    if plan is not None:
        launcher.launch(
            plan.kernel,
            (8, blocks(rows, plan.rows)),
            256,
            args,
            shared_bytes=plan.shared_bytes,
            cluster=8,
        )
        return
    launcher.launch(
        "attention_few_queries_d256_bf16",
        (1, blocks(rows, 16)),
        256,
        args,
        shared_bytes=43_904 + 1_408 * min(rows, 16),
    )
