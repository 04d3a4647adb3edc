"""LeRobot's policies on the same GPU and the same shapes, for the ratio.

Two paths: its code as it comes (eager), and the strongest form of it that could be made to run:
every stage through torch.compile and the whole call recorded into one CUDA graph. Weights are
random and inputs lie on the GPU already, so neither conversion of images nor copies are counted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any, Protocol, cast

import numpy as np
import torch

from ..errors import DeviceError, OptionError
from .case import Case, percentiles

PATHS = ("eager", "compiled_graph")
_NAME = "LeRobot"
_WARM_UP = 5
_SECONDS = 12.0  # a path is sampled no longer than that


class Peer(Protocol):
    """LeRobot's code of one policy; modules ``peer_lerobot_<policy>``.

    Attributes:
        NEEDS: modules that it imports.
        EXTRA: what to install.
    """

    NEEDS: tuple[str, ...]
    EXTRA: str

    def build(self, case: Case) -> Any:
        """The network of a case on the GPU, with random weights."""

    def call(self, model: Any, case: Case) -> Callable[[], Any]:
        """A whole decision on inputs that lie on the GPU."""

    def compiled_graph(self, model: Any, case: Case) -> Callable[[], Any]:
        """The same, compiled and in one CUDA graph."""


def _peer(policy: str) -> Peer:
    peer: Any = import_module(f"{__name__}_{policy}")
    return cast(Peer, peer)


def require_lerobot(policy: str = "pi05") -> str:
    """LeRobot's version; DeviceError with the remedy where it, or what it needs, is missing."""
    peer = _peer(policy)
    try:
        for name in peer.NEEDS:
            import_module(name)
        return version("lerobot")
    except (ImportError, PackageNotFoundError) as error:
        raise DeviceError(
            "peer 'lerobot'",
            expected="packages lerobot and transformers",
            got=str(error),
            remedy=f"pip install '{peer.EXTRA}', or leave --peer out",
        ) from error


def check_paths(paths: Sequence[str]) -> None:
    """OptionError unless every path is known and there is one."""
    if not paths or set(paths) - set(PATHS):
        raise OptionError(
            "option 'peer-paths'", expected=f"some of {list(PATHS)}", got=repr(",".join(paths))
        )


def run_peer(
    cases: Sequence[Case], samples: int, paths: Sequence[str] = PATHS, policy: str = "pi05"
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Measures cases: a row of each path without its kernels, and then those, with case and path.

    A profiler slows what comes behind it in a process. So kernels are counted behind all times, and
    for that every network but the last is built again. What each took is free again afterwards.

    Args:
        cases: shapes of the decision.
        samples: most calls that are timed of each path.
        paths: some of PATHS, in their order.
        policy: whose code of LeRobot's.

    Raises:
        DeviceError: LeRobot is missing.
        OptionError: an unknown path.
    """
    check_paths(paths)
    found, peer = require_lerobot(policy), _peer(policy)
    wanted = [(case, path) for case in cases for path in PATHS if path in paths]
    for case, path in wanted:
        with _clean():
            last = (case, path) == wanted[-1]
            for row in _rows(peer, case, path, samples, counted=last):
                yield case, {"name": _NAME, "version": found, "path": path} | row
    for case, path in wanted[:-1]:
        with _clean():
            yield case, {"path": path, "kernels": _count_kernels(_ready(peer, case, path))}


def _rows(
    peer: Peer, case: Case, path: str, samples: int, counted: bool
) -> Iterator[dict[str, Any]]:
    """Times of a path, then its kernels; a generator, for what it built to be gone at its end."""
    began = perf_counter()
    run = _ready(peer, case, path)
    set_up = perf_counter() - began
    times = _sample(run, samples)
    yield {"ms": percentiles(times), "samples": len(times), "set_up_s": round(set_up, 1)}
    if counted:
        yield {"kernels": _count_kernels(run)}


def _ready(peer: Peer, case: Case, path: str) -> Callable[[], Any]:
    """A warm decision, of a network of its own: one that was compiled is no longer as it came."""
    model = peer.build(case)
    run = peer.call(model, case) if path == "eager" else peer.compiled_graph(model, case)
    for _ in range(_WARM_UP):
        run()
    torch.cuda.synchronize()
    return run


def with_ratios(row: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """A peer's row with how many times longer it takes than our replay and our whole call."""
    taken = row["ms"]["p50"]
    return row | {
        "ratio_to_replay": round(taken / ours["replay_ms"]["p50"], 2),
        "ratio_to_call": round(taken / ours["call_ms"]["p50"], 2),
    }


@contextmanager
def _clean() -> Iterator[None]:
    """Settings of torch that the peer changes are put back, and its memory is freed."""
    precision = torch.get_float32_matmul_precision()
    _free()
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.compiler.reset()
        _free()


def _free() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _sample(run: Callable[[], Any], samples: int) -> np.ndarray[Any, Any]:
    times: list[float] = []
    end = perf_counter() + _SECONDS
    while len(times) < samples and perf_counter() < end:
        began = perf_counter()
        run()
        torch.cuda.synchronize()
        times.append((perf_counter() - began) * 1e3)
    return np.array(times)


def _count_kernels(run: Callable[[], Any]) -> int:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return sum(
        event.device_type == torch.autograd.DeviceType.CUDA
        and not event.name.startswith(("Memcpy", "Memset"))
        for event in profiler.events() or []
    )
