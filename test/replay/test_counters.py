"""What the diagnostics of a node are turned into."""

from flashrt_ros.replay.counters import node_counts


def test_losses_and_refusals_by_reason() -> None:
    diagnostics = {
        "policy: node": {"state": "active"},
        "policy: decisions": {
            "decisions": "98",
            "stale": "3",
            "failed": "0",
            "deadline_missed": "2",
            "total_ms.p50": "12.3",
        },
        "policy: input front": {
            "received": "290",
            "refused": "9",
            "refused.encoding": "4",
            "refused.stamp_backwards": "5",
            "refused.size": "0",
        },
        "policy: input joints": {"received": "1000", "refused": "0"},
    }
    counts = node_counts(diagnostics, {"front": 300, "joints": 1000, "unseen": 7})
    assert counts.lost == {"front": 10, "deadline": 2}
    assert counts.refused == {
        "front: encoding": 4,
        "front: stamp backwards": 5,
        "decision: stale input": 3,
    }


def test_no_diagnostics_counts_nothing() -> None:
    counts = node_counts({}, {"front": 300})
    assert (counts.lost, counts.refused) == ({}, {})
