"""What a node's configuration says about the plan to load, and how far the loading is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flashrt_core.contract import Contract
from flashrt_core.errors import OptionError
from flashrt_core.load import LoadOptions
from flashrt_core.load_options import parse_settings
from flashrt_core.policies import find_policy
from flashrt_ros.execution.parameters import DEFAULT_GAP_S
from flashrt_ros.execution.strategies import REAL_TIME_CHUNKING
from flashrt_ros.parameters import HOLD, NodeConfig
from flashrt_ros.paths import local_place


class LoadLog:
    """Says every few seconds how far a checkpoint file is read. Silent for a quick one."""

    def __init__(self, say: Callable[[str], object], every_s: float = 2.0) -> None:
        self._say = say
        self._every_s = every_s
        self._last = time.monotonic()

    def __call__(self, step: str, done: int, total: int) -> None:
        """Progress of one step, in bytes."""
        now = time.monotonic()
        if now - self._last >= self._every_s:
            self._last = now
            self._say(f"checkpoint: {step} {done / 1e9:.1f} of {total / 1e9:.1f} GB")


def check_action_kind(config: NodeConfig, relative: tuple[int, ...]) -> None:
    """OptionError when actions that the state is added to would be published as changes of it."""
    if config.action_kind == "delta" and relative:
        raise OptionError(
            "parameter 'action.kind'",
            expected=f"absolute: the observed state is added to {_names(config, relative)}",
            got="delta",
            remedy="set it to absolute, or action.relative to [none] to publish the changes",
        )


def check_replan_rows(config: NodeConfig, horizon: int) -> None:
    """OptionError when the next chunk is asked for after the end of one; horizon 0: not known."""
    rows = config.execution.replan_rows
    if horizon and rows >= horizon:
        raise OptionError(
            "parameter 'execution.replan_rows'",
            expected=f"less than {horizon}, the horizon of the policy",
            got=rows,
            remedy="at its last row nothing would be left for a decision that is late",
        )


def check_delay(config: NodeConfig, horizon: int) -> None:
    """OptionError when a chunk is over before it is expected; horizon 0: not known."""
    lasts_s = horizon * config.action_dt_s
    if horizon and config.execution.delay_s >= lasts_s:
        raise OptionError(
            "parameter 'execution.delay_s'",
            expected=f"less than {lasts_s:g} s, which a chunk lasts (horizon, action.dt_s)",
            got=config.execution.delay_s,
        )


def check_history(config: NodeConfig, contract: Contract) -> None:
    """OptionError when decisions that build on each other are to begin before a chunk is over, or
    others within a time of its end.
    """
    if contract.history is None and config.execution.gap_s != DEFAULT_GAP_S:
        raise OptionError(
            "parameter 'execution.gap_s'",
            expected=f"{DEFAULT_GAP_S:g}: policy '{config.policy}' decides by rate_hz",
            got=config.execution.gap_s,
            remedy="take it out",
        )
    if contract.history is not None and config.execution.replan_rows:
        raise OptionError(
            "parameter 'execution.replan_rows'",
            expected=f"0: policy '{config.policy}' decides where a chunk ends",
            got=config.execution.replan_rows,
        )


def check_plan(config: NodeConfig, contract: Contract, relative: tuple[int, ...]) -> None:
    """OptionError where a configuration does not fit what was loaded; ``relative``: the actions
    that the state is added to.
    """
    check_action_kind(config, relative)
    horizon = max(contract.shapes).horizon
    check_replan_rows(config, horizon)
    check_delay(config, horizon)
    check_history(config, contract)


def _names(config: NodeConfig, indices: tuple[int, ...]) -> str:
    return ", ".join(config.action_names[index] for index in indices)


def absent_views(config: NodeConfig) -> int:
    """How many cameras a decision may do without; OptionError where the policy needs them all."""
    held = [camera for camera in config.cameras if camera.on_missing == HOLD]
    if held and not find_policy(config.policy).masks_views:
        raise OptionError(
            f"parameter 'camera.{held[0].key}.on_missing'",
            expected=f"wait or stop: policy '{config.policy}' needs every camera",
            got=HOLD,
        )
    return min(len(held), len(config.cameras) - 1)


def guides_chunks(config: NodeConfig) -> bool:
    """Whether decisions are to continue chunks; OptionError where the policy cannot."""
    wanted = config.execution.strategy == REAL_TIME_CHUNKING
    if wanted and not find_policy(config.policy).continues_chunks:
        raise OptionError(
            "parameter 'execution.strategy'",
            expected=f"another: policy '{config.policy}' cannot continue a chunk",
            got=REAL_TIME_CHUNKING,
        )
    return wanted


def _path(text: str) -> Path | None:
    return Path(local_place(text)) if text else None


def _extra(config: NodeConfig) -> dict[str, Any]:
    """Values of the policy's configuration that not every policy has."""
    given = parse_settings(config.settings)
    if not config.state_in_prompt:
        given["state_in_prompt"] = False
    return given if config.embodiment < 0 else {**given, "embodiment": config.embodiment}


def load_options(config: NodeConfig) -> LoadOptions:
    """What to load for a node configuration. Zero and "" mean "the policy's own"."""
    return LoadOptions(
        policy=config.policy,
        preset=config.preset,
        checkpoint=local_place(config.checkpoint),
        device=config.device,
        precision=config.precision,
        calibration=local_place(config.calibration) or None,
        views=tuple(camera.slot for camera in config.cameras),
        absent_views=absent_views(config),
        state_dim=len(config.joints_names),
        action_dim=len(config.action_names),
        norm_stats=_path(config.norm_stats),
        tokenizer=_path(config.tokenizer),
        delta_actions=tuple(name in config.action_relative for name in config.action_names)
        if config.action_relative
        else None,
        numerics=config.numerics,
        extra=_extra(config),
        horizon=config.horizon or None,
        steps=config.steps or None,
        prompt_buckets=config.prompt_buckets or None,
        seed=config.seed,
        prompt=config.prompt,
        max_sessions=config.max_sessions,
        working_sets=config.working_sets,
        capsule_slots=config.capsule_slots,
        threads=config.threads,
        camera_bytes=config.camera_bytes,
        real_time_chunking=guides_chunks(config),
    )
