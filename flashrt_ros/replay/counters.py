"""What the node's diagnostics say was refused, and what of the messages sent never reached it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Counters of the node's status "decisions", and what they are called in a report.
NOT_MADE = {
    "stale": "stale input",
    "skewed": "inputs too far apart",
    "stopped": "stopped by a missing input",
    "failed": "failed",
    "busy": "busy",
}


@dataclass(frozen=True)
class NodeCounts:
    """Counts of one run.

    Attributes:
        lost: messages that were sent and never arrived [input -> count], and decisions that were
            due while the one before still ran ["deadline" -> count].
        refused: messages [``<input>: <reason>`` -> count] and decisions [``decision: <reason>``].
    """

    lost: dict[str, int]
    refused: dict[str, int]


def node_counts(
    diagnostics: Mapping[str, Mapping[str, str]], sent: Mapping[str, int]
) -> NodeCounts:
    """Read the counters.

    Args:
        diagnostics: values by status name (``<node>: input <name>``, ``<node>: decisions``) and
            key; a status that never came counts nothing.
        sent: messages published for each input.
    """
    by_part = {name.partition(": ")[2]: values for name, values in diagnostics.items()}
    lost: dict[str, int] = {}
    refused: dict[str, int] = {}
    for name, count in sent.items():
        values = by_part.get(f"input {name}")
        if values is None:
            continue
        lost[name] = max(0, count - _count(values, "received"))
        for key in values:
            group, _, reason = key.partition(".")
            if group == "refused" and reason:
                refused[f"{name}: {reason.replace('_', ' ')}"] = _count(values, key)
    decisions = by_part.get("decisions", {})
    lost["deadline"] = _count(decisions, "deadline_missed")
    for key, words in NOT_MADE.items():
        refused[f"decision: {words}"] = _count(decisions, key)
    return NodeCounts(_positive(lost), _positive(refused))


def _count(values: Mapping[str, str], key: str) -> int:
    text = values.get(key, "")
    return int(text) if text.isdigit() else 0


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count > 0}
