"""The network that is trained, against the reference that the engine is held to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tabletop.model import Pi05
from torch import Tensor

from flashrt_core.policies.pi05 import POLICY, Pi05Config
from flashrt_core.policies.pi05.reference import Reference
from flashrt_core.weights import open_weights

VIEWS = POLICY.slots
TOLERANCE = 1e-4
CONFIGS = {
    "tiny": POLICY.config("tiny"),
    "small": POLICY.config("small"),
    "rounded": POLICY.config("tiny", numerics="lerobot_bf16", trunk_heads=2, expert_heads=6),
    "shallow": POLICY.config(
        "tiny", vision_depth=1, trunk_depth=1, expert_depth=1, horizon=3, action_dim=9
    ),
}


@dataclass(frozen=True)
class Batch:
    """Two observations with prompts of different lengths, and three noises each."""

    pixels: np.ndarray
    tokens: list[list[int]]
    noise: np.ndarray


def make_batch(config: Pi05Config, views: int) -> Batch:
    draw = np.random.default_rng(views)
    side = config.image_size
    return Batch(
        draw.integers(0, 256, (2, views, side, side, 3), dtype=np.uint8),
        [draw.integers(4, config.vocab, length).tolist() for length in (7, 30)],
        draw.standard_normal((2, 3, config.horizon, config.action_dim), dtype=np.float32),
    )


def trained(config: Pi05Config) -> tuple[Pi05, Reference]:
    """Both networks on the same weights."""
    specs = POLICY.tensors(config)
    source = open_weights("random:4", specs)
    model = Pi05(config).eval()
    model.load_state_dict({name: source.get(name) for name in model.state_dict()})
    return model, Reference(config, source)


def padded(tokens: Iterable[list[int]], rows: int) -> Tensor:
    return torch.tensor([[*ids, *[5] * (rows - len(ids))] for ids in tokens])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("views", [1, 2, 3])
@torch.no_grad()
def test_equals_the_reference(name: str, views: int) -> None:
    config = CONFIGS[name]
    batch = make_batch(config, views)
    model, reference = trained(config)
    lengths = torch.tensor([len(ids) for ids in batch.tokens])
    images = torch.from_numpy(batch.pixels).float() / 127.5 - 1.0
    noise = torch.from_numpy(batch.noise)
    context = model.context(images, padded(batch.tokens, 32), lengths)
    actions = model.sample(noise, context)
    # A single step shows the velocity itself, where the noise is; all steps show it on the way.
    start = model.velocity(noise, model.embed_times(torch.ones(2, 3)), context)
    single = Reference(replace(config, steps=1), open_weights("random:4", POLICY.tensors(config)))
    for item in range(2):
        pixels = dict(zip(VIEWS[:views], batch.pixels[item], strict=True))
        expected = reference.context(pixels, batch.tokens[item])
        rows = int(expected.valid.sum())
        assert int(context.lengths[item]) == rows
        assert context.valid[item].sum() == rows
        for ours, theirs in ((context.keys, expected.keys), (context.values, expected.values)):
            found = torch.stack(ours)[:, item, :rows]
            assert (found - theirs[:, expected.valid]).abs().max() <= TOLERANCE
        for sample in range(3):
            whole = reference.finish(expected, batch.noise[item, sample]).actions
            assert (actions[item, sample] - whole).abs().max() <= TOLERANCE
            after = single.finish(expected, batch.noise[item, sample]).actions
            velocity = noise[item, sample] - after
            assert (start[item, sample] - velocity).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_the_tensors_that_a_checkpoint_must_have(name: str) -> None:
    specs = POLICY.tensors(CONFIGS[name])
    found = {key: tuple(value.shape) for key, value in Pi05(CONFIGS[name]).state_dict().items()}
    assert found == {key: spec.shape for key, spec in specs.items() if spec.used}


def test_samples_of_a_context_do_not_see_each_other() -> None:
    config = CONFIGS["tiny"]
    model, _ = trained(config)
    batch = make_batch(config, 2)
    images = torch.from_numpy(batch.pixels).float() / 127.5 - 1.0
    lengths = torch.tensor([len(ids) for ids in batch.tokens])
    context = model.context(images, padded(batch.tokens, 32), lengths)
    noise = torch.from_numpy(batch.noise)
    together = model.sample(noise, context)
    alone = model.sample(noise[:, 1:2], context)
    torch.testing.assert_close(together[:, 1:2], alone, atol=1e-5, rtol=0)


def test_every_parameter_learns() -> None:
    config = CONFIGS["tiny"]
    model, _ = trained(config)
    batch = make_batch(config, 2)
    images = torch.from_numpy(batch.pixels).float() / 127.5 - 1.0
    lengths = torch.tensor([len(ids) for ids in batch.tokens])
    context = model.context(images, padded(batch.tokens, 32), lengths)
    times = model.embed_times(torch.rand(2, 3))
    model.velocity(torch.from_numpy(batch.noise), times, context).square().mean().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still
