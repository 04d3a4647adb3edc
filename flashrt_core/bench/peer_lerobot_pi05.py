"""LeRobot's π0.5 as a peer: its network, a call of it, and the strongest form of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from .case import Case

NEEDS = ("lerobot.policies.pi05.modeling_pi05",)
EXTRA = "lerobot[pi]==0.6.1"
_SIDE = 224


def build(case: Case) -> Any:
    """The network of a case on the GPU, with random weights."""
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


def call(model: Any, case: Case) -> Callable[[], Any]:
    """A whole decision on inputs that lie on the GPU."""
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


def compiled_graph(model: Any, case: Case) -> Callable[[], Any]:
    """Every stage compiled, the whole call in one graph."""
    run = call(model, case)
    torch.set_float32_matmul_precision("high")
    network = model.paligemma_with_expert
    for stage in ("forward", "embed_image"):
        setattr(network, stage, torch.compile(getattr(network, stage)))
    run()  # compiles
    with mock.patch.object(torch, "tensor", _remembered(torch.tensor)):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run()

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
