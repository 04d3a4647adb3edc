"""The node's state on /diagnostics, once a second, in every lifecycle state.

One status for the node itself, one for its decisions, one for each input. Keys are stable: tools
read them (docs/node.md lists them).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from flashrt_core.errors import shorten
from flashrt_ros import prompt_topic
from flashrt_ros.execution.control import Control
from flashrt_ros.execution.machine import SAFE
from flashrt_ros.inputs import AHEAD_NS, Input
from flashrt_ros.runtime import Runtime
from flashrt_ros.stamps import SECOND, in_seconds, time_message
from flashrt_ros.statistics import RateMeter, Statistics

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR
_EXECUTION = "execution"
# Every counter is shown from the start, so that 0 and "not counted" cannot be confused.
_COUNTERS = (
    "decisions",
    "masked",
    "guided",
    "kept_rows",
    "stale",
    "skewed",
    "stopped",
    "failed",
    "deadline_missed",
    "busy",
    "clock_jumps",
    "late_pictures",
    "beyond_network",
    "dropped_chunks",
    prompt_topic.TAKEN,
    prompt_topic.REFUSED,
)
#: Of what is published in every state.
PERIOD_S = 1.0
_RATES = ("decisions", "deadline_missed", "late_pictures")
_REFUSALS = (
    "encoding",
    "size",
    "decode",
    "joint names",
    "not finite",
    "stamp backwards",
    "malformed",
)


@dataclass
class _Status:
    level: bytes
    message: str
    values: dict[str, Any] = field(default_factory=dict)


class Diagnostics:
    """Publishes the state of a node.

    Args:
        node: has ``state``, ``runtime``, ``parameters``, ``edge_log``, ``statistics``, and
            ``own_name``.
    """

    def __init__(self, node: Any, steady_clock: Any) -> None:
        self._node = node
        self._rates = RateMeter()
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._warned_of_clock = False
        node.create_timer(PERIOD_S, self.publish, clock=steady_clock)

    def publish(self) -> None:
        """Publish now."""
        node = self._node
        node.edge_log.settle()
        runtime: Runtime | None = node.runtime
        now_ns = node.get_clock().now().nanoseconds
        parts = {"node": self._of_node(runtime)}
        if runtime is not None:
            self._check_clock(runtime, now_ns)
            runtime.check_progress()
            parts["decisions"] = self._of_decisions(runtime, node.statistics)
            if runtime.execution is not None:
                parts[_EXECUTION] = self._of_execution(runtime.execution)
            for item in runtime.ingest.inputs.values():
                parts[f"input {item.name}"] = self._of_input(item, now_ns)
        self._send(parts, now_ns)

    def event(self) -> None:
        """Publish the status of the execution now: the safe action was taken, or is over."""
        runtime: Runtime | None = self._node.runtime
        if runtime is not None and runtime.execution is not None:
            now_ns = self._node.get_clock().now().nanoseconds
            self._send({_EXECUTION: self._of_execution(runtime.execution)}, now_ns)

    def _send(self, parts: Mapping[str, _Status], now_ns: int) -> None:
        message = DiagnosticArray()
        message.header.stamp = time_message(now_ns)
        message.status = [self._message(part, status) for part, status in parts.items()]
        self._publisher.publish(message)

    def _message(self, part: str, status: _Status) -> Any:
        return DiagnosticStatus(
            level=status.level,
            name=f"{self._node.get_name()}: {part}",
            message=status.message,
            hardware_id=self._node.get_fully_qualified_name(),
            values=[KeyValue(key=key, value=_text(v)) for key, v in status.values.items()],
        )

    def _of_node(self, runtime: Runtime | None) -> _Status:
        node = self._node
        unknown: Mapping[str, str] = node.parameters.unknown
        twins = node.own_name.others()
        values: dict[str, Any] = {
            "state": node.state,
            "unknown_parameters": len(unknown),
            "unknown_parameter_names": shorten(", ".join(unknown)),
            "idle_parameter_sources": shorten(", ".join(source.text for source in node.idle)),
            "mistyped_parameters": len(node.parameters.errors),
            "configure_failures": node.configure_failures,
            "last_failure": node.last_failure,
            "callback_errors": node.callback_errors,
            "nodes_of_this_name": twins + 1,
        }
        if runtime is not None:
            config = runtime.config
            values |= {"policy": config.policy, "checkpoint": config.checkpoint}
            values |= {"fingerprint": runtime.fingerprint}
            values |= {"device": config.device, "precision": config.precision}
            values |= runtime.engine_view
        if twins:
            name = node.get_fully_qualified_name()
            return _Status(ERROR, f"{twins + 1} nodes are called '{name}'", values)
        if node.last_failure and runtime is None:
            return _Status(ERROR, node.last_failure, values)
        if unknown:
            names = shorten(", ".join(unknown))
            return _Status(WARN, f"unknown parameters: {names}", values)
        if node.idle:
            return _Status(WARN, "a parameter file or argument sets nothing here", values)
        return _Status(OK, node.state, values)

    def _of_decisions(self, runtime: Runtime, statistics: Statistics) -> _Status:
        counts = dict.fromkeys(_COUNTERS, 0) | statistics.counts()
        rates = self._rates.read({k: counts[k] for k in _RATES})
        rate = rates["decisions"]
        values: dict[str, Any] = {"rate_hz": rate, "wanted_rate_hz": runtime.config.rate_hz}
        values |= counts
        values |= {"waiting_jobs": runtime.worker.waiting}
        values |= {"prompt": shorten(runtime.session.prompt)}
        for part, percentiles in statistics.percentiles().items():
            values |= {f"{part}.p{p}": value for p, value in percentiles.items()}
        values |= {f"overhead_ms.{key}": value for key, value in statistics.overheads().items()}
        values |= {"policy_cpu_s": statistics.policy_cpu_s, "cpu_s": time.process_time()}
        problem = self._node.edge_log.open_problems().get("decisions")
        if problem:
            return _Status(ERROR, problem, values)
        if rates["deadline_missed"] > 0.0:
            text = f"{rate:.1f} Hz, too slow for {runtime.config.rate_hz:g} Hz"
            if runtime.decider.episodes:
                gap_s = runtime.config.execution.gap_s
                text = f"{rate:.1f} Hz; a chunk came more than {gap_s:g} s after the last one's end"
            return _Status(WARN, text, values)
        if rates["late_pictures"] > 0.0:
            return _Status(WARN, "cameras are late: the newest picture stands for others", values)
        return _Status(OK, f"{rate:.1f} Hz", values)

    def _of_execution(self, execution: Control) -> _Status:
        state, cause = execution.machine.state, execution.machine.cause
        if state != SAFE or cause is None:
            return _Status(OK, state, execution.describe())
        return _Status(ERROR, f"safe action: {cause.text}", execution.describe())

    def _of_input(self, item: Input, now_ns: int) -> _Status:
        counters = item.counters
        refused = dict.fromkeys(_REFUSALS, 0) | counters.refused
        stamp = item.newest_stamp_ns()
        rate = self._rates.read({item.name: counters.received})[item.name]
        ahead = self._rates.read({f"{item.name} ahead": counters.ahead})[f"{item.name} ahead"] > 0.0
        if ahead and stamp is not None:
            self._say_ahead(item, stamp - now_ns)
        values: dict[str, Any] = {
            "topic": item.topic,
            "rate_hz": rate,
            "age_s": "" if stamp is None else (now_ns - stamp) / SECOND,
            "max_age_s": item.max_age_ns / SECOND,
            "received": counters.received,
            "accepted": counters.accepted,
            "used": counters.used,
            "oldest_used_s": counters.oldest_used_ns / SECOND,
            "on_missing": item.on_missing,
            "masked": counters.masked,
            "overwritten": counters.overwritten,
            "lost": counters.lost,
            "unstamped": counters.unstamped,
            "ahead_of_clock": counters.ahead,
            "incompatible_publishers": counters.incompatible,
            "refused": sum(refused.values()),
            "last_refusal": counters.last_refusal,
        }
        values |= {f"refused.{reason.replace(' ', '_')}": n for reason, n in refused.items()}
        if item.select(now_ns) is None:
            return _Status(ERROR if item.stops else WARN, item.explain(now_ns), values)
        if ahead:
            return _Status(WARN, "messages are stamped ahead of the node's clock", values)
        if counters.incompatible:
            return _Status(WARN, "a publisher's QoS or type does not fit", values)
        if counters.unstamped:
            return _Status(WARN, "messages carry no stamp; the time of arrival is used", values)
        return _Status(OK, f"{rate:.1f} Hz", values)

    def _say_ahead(self, item: Input, ahead_ns: int) -> None:
        newest = f"the newest by {in_seconds(ahead_ns)}; " if ahead_ns > 0 else ""
        self._node.edge_log.problem(
            f"input '{item.name}' ({item.topic}) is stamped ahead of the node's clock",
            f"{newest}no decision uses a message more than {in_seconds(AHEAD_NS)} early;"
            " synchronise the machines' clocks, or set use_sim_time as the publisher has it",
            kind="ahead",
        )

    def _check_clock(self, runtime: Runtime, now_ns: int) -> None:
        """Say once what to do when every sensor lives on another clock."""
        if self._warned_of_clock or not runtime.ingest.on_foreign_clock(now_ns):
            return
        self._warned_of_clock = True
        if self._node.get_clock().ros_time_is_active:
            remedy = "use_sim_time is set, but /clock does not show the time of the sensors"
        else:
            remedy = "set use_sim_time if a recording or a simulator plays"
        self._node.get_logger().warning(
            f"every input is stamped more than a minute away from the node's clock: {remedy}"
        )


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)
