"""The table as docs/parameters.md."""

from __future__ import annotations

from .param import in_yaml
from .table import TABLE


def render_markdown() -> str:
    """The table as docs/parameters.md."""
    lines = [
        "# Parameters of the policy node",
        "",
        "Generated from `flashrt_ros/parameters/table.py`: `python -m flashrt_ros.parameters >"
        " docs/parameters.md`.",
        "",
        "Parameters can be set in a file (key `/**:`), on the command line (`--ros-args -p"
        " rate_hz:=5.0`) or, while the node is unconfigured, with `ros2 param set`. From configure"
        " to cleanup they are read-only. A value of the wrong type or out of range makes configure"
        " fail with one line; an unknown name is reported in the log and in diagnostics,"
        " and while an output is on, one of (or like) `output.*`, `execution.*`, `limits.*` or"
        " `safe.*` makes configure fail.",
        "",
        "Of several sources on the command line (launch gives some files, too) the last counts,"
        " whatever the YAML types are: rcl alone would let a file's `rate_hz: 5` win over"
        " `-p rate_hz:=20.0`. A file or `-p` that sets nothing on this node is reported.",
        "",
        "Sensor subscriptions take the usual `qos_overrides.<topic>.subscription.*` (history,"
        " depth, reliability) beside these.",
        "",
        "| name | type | default | unit | range | meaning |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for p in TABLE:
        limits = p.limits().replace("|", r"\|")
        cells = (f"`{p.name}`", p.kind, f"`{in_yaml(p.default)}`", p.unit, limits, p.doc)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
