"""A node's chunks beside the plans of an expert that were recorded with what it saw."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rosbags.typesys import Stores, get_typestore

from .bag import Bag
from .records import ChunkRecord

#: Where a recording of a simulated expert has its plans, one for each of its observations.
TOPIC, KIND = "/expert/joint_trajectory", "trajectory_msgs/msg/JointTrajectory"
_NEAR_NS = 1_000_000  # a plan belongs to the observation of its own stamp


def expert_error(bag: Bag, chunks: Sequence[ChunkRecord]) -> dict[str, dict[str, float]]:
    """How far chunks are from the plans made at the same moment, by joint, in its unit.

    Over all rows of all chunks that have a plan: mean absolute difference, and beside it that of
    standing still, which is what a policy must beat. Empty where the bag holds no plans.
    """
    plans = _plans(bag)
    stamps = sorted(plans)
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for chunk in chunks:
        at = bisect_left(stamps, chunk.first_action_ns - _NEAR_NS)
        if at == len(stamps) or stamps[at] > chunk.first_action_ns + _NEAR_NS:
            continue
        plan = plans[stamps[at]]
        for column, name in enumerate(chunk.names):
            if name in plan:
                rows = min(len(plan[name]), len(chunk.actions))
                wanted = plan[name][:rows]
                error = np.abs(chunk.actions[:rows, column] - wanted)
                found.setdefault(name, []).append((error, np.abs(wanted[0] - wanted)))
    return {
        name: {
            "mean": float(np.mean([error.mean() for error, _ in pairs])),
            "standing_still": float(np.mean([still.mean() for _, still in pairs])),
            "chunks": len(pairs),
        }
        for name, pairs in found.items()
    }


def _plans(bag: Bag) -> dict[int, dict[str, np.ndarray]]:
    """Stamp (ns) -> joint -> positions [rows]."""
    topic = bag.topics.get(TOPIC)
    if topic is None or topic.msgtype != KIND:
        return {}
    store = get_typestore(Stores.ROS2_JAZZY)
    found: dict[int, dict[str, np.ndarray]] = {}
    for message in bag.messages([TOPIC]):
        plan: Any = store.deserialize_cdr(message.data, KIND)
        rows = np.array([point.positions for point in plan.points])
        found[message.stamp_ns] = dict(zip(plan.joint_names, rows.T, strict=True))
    return found


def expert_table(error: Mapping[str, Mapping[str, float]]) -> Table:
    """A line a joint."""
    table = Table(
        box=SIMPLE_HEAD,
        header_style="dim",
        title="actions beside the expert's plans",
        title_justify="left",
    )
    for column in ("joint", "mean error", "of standing still"):
        table.add_column(column, justify="left" if column == "joint" else "right")
    for name, each in error.items():
        table.add_row(name, f"{each['mean']:.4f}", f"{each['standing_still']:.4f}")
    return table
