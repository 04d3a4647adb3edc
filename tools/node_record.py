"""A run of ``flashrt bench node`` as the documents show it."""

from __future__ import annotations

from markdown import table, wrap
from result_files import Result

_PARTS = ("ingest", "context", "action", "publish", "total")


def node_record(result: Result) -> str:
    """What ran where, the limits with what came of them, and where the time of a decision went."""
    inputs, decisions, where = result["inputs"], result["decisions"], result["machine"]
    on = result["gpu"]["name"] if "gpu" in result else f"{where['cores']} cores of {where['cpu']}"
    sent = ", ".join(f"{values['sent']} of `{name}`" for name, values in inputs.items())
    made = f"{decisions['made']} decisions at {decisions['rate_hz']:.2f} Hz"
    text = wrap(
        [
            f"{result['seconds']:g} s on {on}, ROS 2 {result['versions']['ros_distro']}, commit",
            f"{result['commit']}: {made}, from messages: {sent}.",
        ]
    )
    checks = [
        [check["name"], f"{check['got']:.4g}", f"{check['limit']:.4g}", _met(check["passed"])]
        for check in result["checks"]
    ]
    parts = {name: result["latency_ms"][name] for name in _PARTS}
    parts["overhead"] = result["overhead_ms"]
    times = [
        [name, *(f"{values[key]:.2f}" for key in ("p50", "p95", "p99", "max"))]
        for name, values in parts.items()
    ]
    return "\n".join(
        [
            text + "\n",
            table(["line", "got", "limit", "holds"], checks),
            table(["part of a decision, ms", "p50", "p95", "p99", "max"], times),
        ]
    )


def _met(passed: bool) -> str:
    return "yes" if passed else "NO"
