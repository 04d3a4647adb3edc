"""GR00T N1.7 against what was recorded from LeRobot's own code.

Recorded by tools/record_goldens.py; LeRobot's network ran with the weights that groot.py makes, at
full depth and reduced width.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.policies.base import Deployment, ProcessorOptions
from flashrt_core.policies.groot_n17 import POLICY
from flashrt_core.policies.groot_n17.embodiment import read_embodiment
from flashrt_core.policies.groot_n17.images import Framing
from flashrt_core.policies.groot_n17.layout import image_rows, text_runs
from flashrt_core.policies.groot_n17.preprocess import GrootProcessor
from flashrt_core.policies.groot_n17.prompt import PromptEncoder, clean
from flashrt_core.policies.groot_n17.reference import Reference
from flashrt_core.policies.groot_n17.tokenizer import Tokenizer

from ..policies.pipeline import StagePipeline, least_cosine, worst
from . import groot as parity

#: fp32, largest difference of numbers of size 1..6, 24 + 16 + 4 + 32 layers deep. Measured: 1e-5;
#: a switch of the numerics that stands wrong moves the actions by 1e-3 and more.
EXACT = 2e-5
FP32 = [case for case in parity.CASES if case.arithmetic != "bfloat16"]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Products are too small for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def golden() -> dict[str, np.ndarray[Any, Any]]:
    with np.load(Path(__file__).parents[1] / "data" / "groot_n17_lerobot.npz") as file:
        return dict(file)


def run(case: parity.Case, precision: str = "fp32", **changes: Any) -> StagePipeline:
    """A decision of our stages on a case."""
    config = parity.config(case, **changes)
    views = parity.VIEWS[: case.views]
    pipeline = StagePipeline(POLICY, config, views, precision, parity.source(case))
    for view, image in parity.images(case).items():
        pipeline.device.write(pipeline.buffers[f"image.{view}"], image)
    pipeline.device.write(pipeline.buffers["state"], parity.state(case))
    pipeline.device.write(pipeline.buffers["noise"], parity.noise(case))
    tokens = parity.text_tokens(case)
    pipeline.write_prompt(tokens)
    pipeline.run_all(len(tokens))
    return pipeline


def expected(case: parity.Case, name: str) -> torch.Tensor:
    return torch.from_numpy(golden()[f"{case.name}.{name}"])


def in_chat_order(case: parity.Case, rows: torch.Tensor) -> torch.Tensor:
    """Context rows behind the text stack in the order that LeRobot has them."""
    config, count = parity.config(case), len(parity.text_tokens(case))
    images = case.views * config.view_tokens
    found = torch.empty(images + count, rows.shape[1])
    for view in range(case.views):
        first = view * config.view_tokens
        found[image_rows(config, view)] = rows[first : first + config.view_tokens]
    for part in text_runs(config, case.views, count):
        found[part.rows] = rows[images:][part.texts]
    return found


@pytest.mark.parametrize("case", FP32, ids=lambda case: case.name)
def test_stages(case: parity.Case) -> None:
    """Backbone, adapter, state and the whole decision."""
    pipeline = run(case)
    buffers, config = pipeline.buffers, pipeline.config
    rows = case.views * config.view_tokens + len(parity.text_tokens(case))
    assert worst(buffers["image_embedding"], expected(case, "image_rows")) <= EXACT
    assert worst(buffers["text_x"][:rows], expected(case, "text_rows")) <= EXACT
    context = in_chat_order(case, buffers["adapter_x"])
    assert worst(context, expected(case, "context")) <= EXACT
    assert worst(buffers["state_token"], expected(case, "state")) <= EXACT
    assert worst(buffers["actions"], expected(case, "actions")) <= EXACT


@pytest.mark.parametrize("case", FP32[:1], ids=lambda case: case.name)
def test_reference(case: parity.Case) -> None:
    reference = Reference(parity.config(case), parity.source(case))
    images = list(parity.images(case).values())
    context = reference.context(images, parity.text_tokens(case), parity.state(case))
    assert worst(context.rows, expected(case, "context")) <= EXACT
    actions = reference.act(parity.noise(case), context)
    assert worst(actions, expected(case, "actions")) <= EXACT


def test_bf16() -> None:
    """Rounded by others in other places: as far from LeRobot in bf16 as that is from float32."""
    case = parity.CASES[-1]
    assert case.arithmetic == "bfloat16"
    theirs, exact = expected(case, "actions"), expected(parity.CASES[-2], "actions")
    ours = run(case, "bf16").buffers["actions"]
    error = lambda actions: float((actions - exact).pow(2).mean().sqrt())  # noqa: E731
    assert 1e-4 < error(ours) <= 1.2 * error(theirs)
    # 64 numbers of a row average little of the rounding away.
    assert least_cosine(ours, theirs) >= 0.9995


def test_the_comparison_can_fail() -> None:
    case = next(case for case in parity.CASES if case.name == "rounded")
    wanted = expected(case, "actions")
    assert worst(run(case, numerics="lerobot").buffers["actions"], wanted) > 10 * EXACT
    assert worst(run(case, embodiment=0).buffers["actions"], wanted) > 1000 * EXACT


PICTURES = [name for name in golden() if name.startswith(("bicubic", "area"))]


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str) -> None:
    method, size, *boxed = name.split(".")
    height, width = map(int, size.split("x"))
    side = parity.SIZES["image_size"]
    edge = parity.EDGE if method == "bicubic" else side
    framing = Framing(side, edge, parity.FRACTION, boxed == ["True"], method)
    image = parity.raw_image("groot", height, width)
    assert np.array_equal(framing(image), golden()[name])


@pytest.mark.parametrize("percentiles", [False, True])
def test_numbers_of_a_robot(percentiles: bool) -> None:
    """Groups in other orders, joints relative to the state, a range a row, a range of a point."""
    own = read_embodiment(
        "robot", parity.MODALITY, parity.STATISTICS, 1,
        percentiles=percentiles, relative=True, clip=True,
    )  # fmt: skip
    processor = GrootProcessor(
        POLICY.config("tiny", horizon=40, action_dim=132, state_width=132),
        ProcessorOptions(
            POLICY.slots[:2], 7, 7,
            deployment=deployment_of(own),
        ),
    )  # fmt: skip
    state = parity.robot_state()
    assert own.state is not None
    wanted = golden()[f"state.{percentiles}"][0, :7]
    np.testing.assert_allclose(own.state.normalise(state), wanted, rtol=0, atol=1e-6)
    raw = parity.raw_actions()
    found = processor.decode(raw, state)
    np.testing.assert_allclose(found, golden()[f"decoded.{percentiles}"], rtol=0, atol=2e-6)
    assert found.shape == (6, 7) and processor.relative == (0, 1, 2, 3)
    again = processor.encode_actions(found, state)
    inside = np.clip(raw[:6, :7], -1, 1)
    # The number that never moved has no inverse, and the network has none for the padding.
    assert np.isnan(again[:, 6:]).all()
    np.testing.assert_allclose(again[:, :6], inside[:, :6], rtol=0, atol=1e-4)


def deployment_of(own: Any) -> Deployment:
    from flashrt_core.policies.groot_n17.deployment import Details, deployed

    return deployed("official", {}, Details({own.name: own}))


def test_instructions_and_tokens() -> None:
    config = POLICY.config("tiny", lead=3)
    tokenizer = Tokenizer()
    encoder = PromptEncoder(config, tokenizer, 2)
    image = tokenizer.special("<|image_pad|>")
    about = json.loads(bytes(golden()["about"]))
    for index, (prompt, cleaned) in enumerate(zip(parity.PROMPTS, about["prompts"], strict=True)):
        assert clean(prompt) == cleaned
        chat = golden()[f"tokens.{index}"].tolist()
        assert list(encoder.encode(prompt)) == [token for token in chat if token != image]
    for index, text in enumerate(parity.TEXTS):
        assert tokenizer.encode(text) == golden()[f"text.{index}"].tolist()
