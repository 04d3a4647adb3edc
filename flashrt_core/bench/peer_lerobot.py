"""LeRobot's π0.5 on the same GPU and the same shapes, for the ratio.

Two paths: its code as it comes (eager), and the strongest form of it that could be made to run:
every stage through torch.compile and the whole call recorded into one CUDA graph. Weights are
random and inputs lie on the GPU already, so neither conversion of images nor copies are counted.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from time import perf_counter
from typing import Any
from unittest import mock

import numpy as np
import torch

from ..errors import DeviceError, OptionError
from .case import Case, percentiles

PATHS = ("eager", "compiled_graph")
_NAME = "LeRobot"
_WARM_UP = 5
_SECONDS = 12.0  # a path is sampled no longer than that
_SIDE = 224


def require_lerobot() -> str:
    """LeRobot's version; DeviceError with the remedy where it is missing."""
    try:
        from lerobot.policies.pi05 import modeling_pi05  # noqa: F401

        return version("lerobot")
    except (ImportError, PackageNotFoundError) as error:
        raise DeviceError(
            "peer 'lerobot'",
            expected="packages lerobot and transformers",
            got=str(error),
            remedy="pip install 'lerobot[pi]==0.6.1', or leave --peer out",
        ) from error


def check_paths(paths: Sequence[str]) -> None:
    """OptionError unless every path is known and there is one."""
    if not paths or set(paths) - set(PATHS):
        raise OptionError(
            "option 'peer-paths'", expected=f"some of {list(PATHS)}", got=repr(",".join(paths))
        )


def run_peer(case: Case, samples: int, paths: Sequence[str] = PATHS) -> Iterator[dict[str, Any]]:
    """Measures one case: a row of each path. Everything it took is free again afterwards.

    Args:
        case: shape of the decision.
        samples: most calls that are timed of each path.
        paths: some of PATHS, in their order.

    Raises:
        DeviceError: LeRobot is missing.
        OptionError: an unknown path.
    """
    check_paths(paths)
    found = require_lerobot()
    with _clean():
        began = perf_counter()
        model = _build(case)
        call = _call(model, case)
        built = perf_counter() - began
        for path in (path for path in PATHS if path in paths):
            began = perf_counter()
            run = call if path == "eager" else _compiled_graph(model, call)
            for _ in range(_WARM_UP):
                run()
            torch.cuda.synchronize()
            set_up = built + perf_counter() - began
            times = _sample(run, samples)
            yield {
                "name": _NAME,
                "version": found,
                "path": path,
                "ms": percentiles(times),
                "samples": len(times),
                "kernels": _count_kernels(run),
                "set_up_s": round(set_up, 1),
            }


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


def _build(case: Case) -> Any:
    from lerobot.policies.pi05.configuration_pi05 import PI05Config
    from lerobot.policies.pi05.modeling_pi05 import PI05Pytorch

    config = PI05Config(
        dtype="bfloat16",
        chunk_size=case.horizon,
        n_action_steps=case.horizon,
        num_inference_steps=case.steps,
        device="cuda",
    )
    with torch.device("cuda"):
        return PI05Pytorch(config).to("cuda").eval()


def _call(model: Any, case: Case) -> Callable[[], Any]:
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device="cuda", generator=generator)

    images = [draw(1, 3, _SIDE, _SIDE) * 2.0 - 1.0 for _ in range(case.views)]
    present = [torch.ones(1, dtype=torch.bool, device="cuda") for _ in images]
    tokens = (draw(1, case.prompt_tokens) * 250_000).long()
    valid = torch.ones_like(tokens, dtype=torch.bool)
    noise = torch.randn(1, case.horizon, 32, device="cuda", generator=generator)
    return lambda: model.sample_actions(
        images, present, tokens, valid, noise=noise.clone(), num_steps=case.steps
    )


def _compiled_graph(model: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    torch.set_float32_matmul_precision("high")
    network = model.paligemma_with_expert
    for stage in ("forward", "embed_image"):
        setattr(network, stage, torch.compile(getattr(network, stage)))
    call()  # compiles
    with mock.patch.object(torch, "tensor", _remembered(torch.tensor)):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def _remembered(make: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.tensor`` that copies a list of constants to the GPU only once.

    A copy from pageable host memory is not allowed while a graph records.
    """
    made: dict[str, Any] = {}

    def tensor(*args: Any, **kwargs: Any) -> Any:
        key = repr((args, kwargs))
        if key not in made:
            made[key] = make(*args, **kwargs)
        return made[key]

    return tensor


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
