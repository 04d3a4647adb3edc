"""The processor: images, state, statistics, actions, and everything it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.errors import InputError, OptionError
from flashrt_core.policies.base import Observation, ProcessorOptions
from flashrt_core.policies.normalisation import FIELDS, from_arrays
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.policies.pi05.camera import resize_with_pad
from flashrt_core.policies.pi05.preprocess import Pi05Processor
from flashrt_core.policies.sentencepieces import Tokenizer

from .harness import TWO, VIEWS

TINY = POLICY.config("tiny")
PLAIN = POLICY.config("tiny", state_in_prompt=False)
Array = np.ndarray[Any, Any]


def processor(config: Any = TINY, **changes: Any) -> Pi05Processor:
    options: dict[str, Any] = {"views": TWO, "state_dim": 3, "action_dim": 4, **changes}
    return POLICY.processor(config, ProcessorOptions(**options))  # type: ignore[return-value]


def image(value: int = 100, height: int = 48, width: int = 64) -> Array:
    return np.full((height, width, 3), value, np.uint8)


def observation(state: Any = (0.0, 0.5, -0.5), **changes: Any) -> Observation:
    images = {view: image(10 * index) for index, view in enumerate(TWO)}
    values = np.array(state, np.float32) if isinstance(state, tuple) else state
    return Observation(**{"images": images, "state": values, **changes})


# ---- images -------------------------------------------------------------------------------------


def test_resize_keeps_aspect_and_centres_on_black() -> None:
    out = resize_with_pad(image(200, 480, 640), 56)
    assert out.shape == (56, 56, 3) and out.dtype == np.uint8
    assert (out[7:49] == 200).all()  # 56 * 480 / 640 = 42 rows, 7 above and below
    assert (out[:7] == 0).all() and (out[49:] == 0).all()
    tall = resize_with_pad(image(200, 640, 480), 56)
    assert np.array_equal(tall, out.transpose(1, 0, 2))


def test_resize_rounds_down_and_puts_the_odd_row_below() -> None:
    out = resize_with_pad(image(9, 100, 150), 20)  # 13.33 -> 13 rows, 3 above, 4 below
    rows = np.flatnonzero(out[:, 0, 0])
    assert (rows[0], rows[-1]) == (3, 15)


def test_resize_down_averages_the_source_area() -> None:
    """Pillow's bilinear: a triangle over twice the scale; point sampling would alias."""
    stripes = np.zeros((8, 8, 3), np.uint8)
    stripes[:, ::2] = 255
    out = resize_with_pad(stripes, 4)
    # Weights 1 3 3 1 over four columns, of which every other is white.
    assert out[1, 1].tolist() == [128, 128, 128]
    # At the edge the outer weight falls away: (3 * 255 + 0 + 1 * 255) / 7 = 146.
    assert out[1, 0].tolist() == [146, 146, 146]


def test_resize_up_interpolates_between_pixel_centres() -> None:
    pair = np.zeros((2, 2, 3), np.uint8)
    pair[:, 1] = 200
    out = resize_with_pad(pair, 4)
    assert out[0, :, 0].tolist() == [0, 50, 150, 200]


def test_resize_leaves_the_right_size_alone() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    assert np.array_equal(resize_with_pad(pixels, 56), pixels)
    flipped = resize_with_pad(pixels[::-1, ::-1], 56)
    assert flipped.flags["C_CONTIGUOUS"]
    assert np.array_equal(flipped, pixels[::-1, ::-1])


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 4000), (4000, 1), (57, 55)])
def test_resize_of_odd_sizes(height: int, width: int) -> None:
    out = resize_with_pad(image(77, height, width), 56)
    assert out.max() == 77


def test_views_go_by_name() -> None:
    wanted = (VIEWS[2], VIEWS[0])  # as a user may list them
    subject = processor(views=wanted)
    assert subject.views == (VIEWS[0], VIEWS[2])
    images = {VIEWS[2]: image(2, 56, 56), VIEWS[0]: image(1, 56, 56)}
    values = subject.encode(observation(images=images), "go")
    assert (values["image.base_0_rgb"] == 1).all()
    assert (values["image.right_wrist_0_rgb"] == 2).all()
    assert "image.left_wrist_0_rgb" not in values


# ---- prompt and state ---------------------------------------------------------------------------


def test_encode_matches_the_contract() -> None:
    subject = processor()
    values = subject.encode(observation(), "pick up the cup")
    contract = POLICY.contract(TINY, POLICY.shapes(TINY, 2), TWO, "fp32")
    for name, value in values.items():
        spec = contract.input(name)
        assert (value.shape, value.dtype) == (spec.shape, spec.dtype.value)
    assert set(values) | {"noise"} == {spec.name for spec in contract.inputs}
    ids = [2, *Tokenizer().encode("Task: pick up the cup, State: 128 192 64;\nAction: ")]
    assert values["prompt_tokens"][: len(ids)].tolist() == ids
    assert not values["prompt_tokens"][len(ids) :].any()
    assert values["prompt_length"].tolist() == [len(ids)]
    assert subject.prompt_tokens(values) == len(ids)


def test_plain_prompt_does_not_see_the_state() -> None:
    subject = processor(PLAIN)
    texts = [subject.encode(observation(state=s), "go")["prompt_tokens"] for s in (None, (1, 2, 3))]
    assert np.array_equal(*texts)
    ids = [2, *Tokenizer().encode("go"), *Tokenizer().encode("\n")]
    assert texts[0][: len(ids)].tolist() == ids


def stats_file(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "norm_stats.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def stats(dims: int = 8) -> dict[str, Any]:
    part = {"mean": [0.0] * dims, "std": [1.0] * dims, "q01": [0.0] * dims, "q99": [2.0] * dims}
    return {"norm_stats": {"state": dict(part), "actions": dict(part)}}


def quantiles(low: Any, high: Any) -> dict[str, Any]:
    return {"norm_stats": {"state": {"q01": low, "q99": high}}}


def test_state_is_normalised_with_the_quantiles(tmp_path: Path) -> None:
    content = stats()
    content["norm_stats"]["state"] |= {"q01": [-2.0, 0.0, 1.0], "q99": [2.0, 10.0, 1.5]}
    subject = processor(norm_stats=stats_file(tmp_path, content))
    # Quantiles map to -1 and (just short of, by the 1e-6 in the fraction) 1; nothing is clipped.
    for state, numbers in (
        ((-2.0, 0.0, 1.0), "0 0 0"),
        ((2.0, 10.0, 1.5), "255 255 255"),
        ((-2.1, 7.6, 9.0), "-1 194 255"),
    ):
        values = subject.encode(observation(state=state), "go")
        ids = [2, *Tokenizer().encode(f"Task: go, State: {numbers};\nAction: ")]
        assert values["prompt_tokens"][: len(ids)].tolist() == ids


def test_without_statistics_the_state_is_taken_as_normalised() -> None:
    values = processor().encode(observation(state=(0.0, -1.0, 1.0)), "go")
    ids = [2, *Tokenizer().encode("Task: go, State: 128 0 255;\nAction: ")]
    assert values["prompt_tokens"][: len(ids)].tolist() == ids


# ---- actions ------------------------------------------------------------------------------------


def test_decode_takes_the_first_dimensions() -> None:
    raw = np.arange(64, dtype=np.float32).reshape(2, 32)
    out = processor().decode(raw, None)
    assert out.dtype == np.float32 and out.flags["C_CONTIGUOUS"]
    assert out.tolist() == [[0, 1, 2, 3], [32, 33, 34, 35]]
    out[0, 0] = 99
    assert raw[0, 0] == 0  # a copy


def test_decode_un_normalises_without_clipping(tmp_path: Path) -> None:
    content = stats()
    content["norm_stats"]["actions"] |= {"q01": [0, -1, 5, 0, 7], "q99": [2, 1, 5, 100, 7]}
    subject = processor(norm_stats=stats_file(tmp_path, content))
    raw = np.zeros((3, 32), np.float32)
    raw[1], raw[2] = 1.0, -3.0
    out = subject.decode(raw, None)
    eps = 1e-6
    assert out[0] == pytest.approx([1, 0, 5, 50], abs=1e-5)
    assert out[1] == pytest.approx([2 + eps, 1 + eps, 5 + eps, 100 + eps], abs=1e-5)
    assert out[2] == pytest.approx([-2, -3, 5, -100], abs=1e-5)


def test_decode_inverts_the_normalisation(tmp_path: Path) -> None:
    from flashrt_core.policies.normalisation import read_norm_stats

    path = stats_file(tmp_path, stats())
    quantiles = read_norm_stats(path, "actions")
    values = np.random.default_rng(0).standard_normal((5, 8)) * 10
    assert np.allclose(quantiles.restore(quantiles.normalise(values)), values, atol=1e-12)


def test_decode_refuses_other_shapes() -> None:
    with pytest.raises(InputError, match=r"raw actions: expected \[rows, 32\], got \[10, 7\]"):
        processor().decode(np.zeros((10, 7), np.float32), None)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": {TWO[0]: image()}}, "image 'left_wrist_0_rgb': .*got none"),
        (
            {"images": {**dict.fromkeys(TWO, image()), "top": image()}},
            "image 'top': expected one of the views",
        ),
        (
            {"images": {TWO[0]: image(), TWO[1]: image().astype(np.float32)}},
            "image 'left_wrist_0_rgb': expected .* uint8, got .* float32",
        ),
        ({"images": dict.fromkeys(TWO, image()[..., 0])}, "image 'base_0_rgb'.*got .48, 64. uint8"),
        ({"images": dict.fromkeys(TWO, np.zeros((4, 4, 4), np.uint8))}, "got .4, 4, 4. uint8"),
        ({"images": dict.fromkeys(TWO, np.zeros((0, 4, 3), np.uint8))}, "got .0, 4, 3. uint8"),
        ({"state": None}, "state: expected 3 numbers, got none"),
        ({"state": np.zeros(4, np.float32)}, "state: expected .3. numbers, got .4. float32"),
        ({"state": np.zeros((3, 1), np.float32)}, "state: expected .3. numbers, got .3, 1."),
        ({"state": np.array([1j, 0, 0])}, "state: expected .3. numbers, got .3. complex128"),
        ({"state": np.array([0, np.nan, 0])}, r"state\[1\]: expected a finite number, got nan"),
        ({"state": np.array([0, 0, -np.inf])}, r"state\[2\]: expected a finite number, got -inf"),
    ],
)
def test_bad_observations(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        processor().encode(observation(**changes), "go")


def test_a_state_that_the_network_ignores_must_still_be_sound() -> None:
    with pytest.raises(InputError, match=r"state\[0\]"):
        processor(PLAIN).encode(observation(state=(np.nan, 0, 0)), "go")


def test_prompt_checks() -> None:
    subject = processor()
    subject.check_prompt("pick up the cup")
    with pytest.raises(InputError, match="empty"):
        subject.check_prompt(" ")
    with pytest.raises(InputError, match="at most 128 tokens with up to 3"):
        subject.check_prompt("cup " * 200)


def test_a_cut_is_at_the_trained_length_or_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    def length(text: str, **changes: Any) -> int:
        config = POLICY.config("tiny", numerics="openpi", **changes)
        subject = processor(config)
        subject.check_prompt(text)
        return subject.prompt_tokens(subject.encode(observation(), text))

    long = "cup " * 300
    # 200 is openpi's length, 100 what a LeRobot folder may say; buckets reach farther or end there.
    for trained, buckets in ((200, (64, 256)), (200, (200,)), (100, (64, 256)), (100, (100,))):
        caplog.clear()
        assert length(long, trained_tokens=trained, prompt_buckets=buckets) == trained
        assert f"cut to {trained}, the longest of the training" in caplog.text
    caplog.clear()
    for trained in (129, 200):  # within the trained length or not: 128 tokens is the largest bucket
        for text in ("cup " * 145, long):
            with pytest.raises(InputError, match=r"at most 128 tokens.*\(prompt_buckets\)"):
                length(text, trained_tokens=trained, prompt_buckets=(64, 128))
    refusing = {"trained_tokens": 100, "prompt_buckets": (64, 256)}
    with pytest.raises(InputError, match=r"at most 256 tokens"):  # random weights: not trained
        processor(POLICY.config("tiny", **refusing)).check_prompt(long)
    assert not caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": ()}, "'views'"),
        ({"views": ("base_0_rgb", "top")}, "'views': expected some of .*got .*'top'"),
        ({"views": ("base_0_rgb", "base_0_rgb")}, "'views'"),
        ({"state_dim": 0}, "'state_dim': expected 1 or more"),
        ({"state_dim": -1}, "'state_dim'"),
        ({"action_dim": 33}, "'action_dim': expected a whole number in 1..32, got 33"),
        ({"action_dim": 0}, "'action_dim'"),
        ({"state_dim": 120}, "'prompt_buckets': expected room for the state of 120 numbers"),
        ({"tokenizer": Path("/nowhere/x.model")}, "'tokenizer'"),
    ],
)
def test_bad_options(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        processor(**changes)


def test_a_tokenizer_larger_than_the_table() -> None:
    with pytest.raises(OptionError, match="tokenizer 'tiny': expected at most 1000 ids.*1024"):
        processor(POLICY.config("tiny", vocab=1000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected JSON"),
        ("[]", "a list of numbers at norm_stats.state.q01"),
        (
            {"norm_stats": {"state": {"q01": [0] * 8}}},
            r"at norm_stats.state.q99, got no 'q99' in norm_stats.state, only \['q01'\]; use a",
        ),
        ({"norm_stats": {"state": stats()["norm_stats"]["state"]}}, "norm_stats.actions.q01"),
        (stats(2), "'state_dim': expected at most 2, as norm_stats .* has, got 3"),
        (
            {"norm_stats": {"state": {"q01": [[0.0]], "q99": [[1.0]]}}},
            r"state.q01\[0\]: expected a finite number, got \[0.0\], a list",
        ),
        (quantiles([0, "1"], [1, 1]), r"q01\[1\]: expected a finite number, got '1', text"),
        (quantiles([0, 0], [1, True]), r"q99\[1\]: expected a finite number, got True, a boolean"),
        (quantiles([0, 0], [1, 10**400]), r"q99\[1\]: expected a finite number, got one of 1329"),
        (quantiles([0, 0], [1, 1e300]), r"q99\[1\]: expected a finite number below 1e\+30"),
        (quantiles([0, 0], None), r"at norm_stats.state.q99, got null; use a norm_stats.json with"),
        (quantiles([0, 0], []), "at norm_stats.state.q99, got an empty list"),
        (quantiles([0, 0], [1, 1, 1]), r"q01: expected 3 finite numbers, got \[2\]"),
        (
            quantiles([0, 5, 0], [1, 4, 1]),
            r"q99\[1\]: expected a number not below 5, which is state.q01\[1\], got 4; compute",
        ),
        ("[" * 100_000, "expected JSON, got lists or objects nested too deeply"),
        ("version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer to it; run git lfs pull"),
        (
            '{"norm_stats": {"state": {"q01": [NaN, 0, 0], "q99": [1, 1, 1]}}}',
            r"q01\[0\]: expected a finite number below 1e\+30, got nan",
        ),
    ],
)
def test_bad_statistics(tmp_path: Path, content: Any, message: str) -> None:
    path = stats_file(tmp_path, content)
    with pytest.raises(OptionError, match=message) as caught:
        processor(norm_stats=path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "low", "high", "eps", "said"),
    [
        ("mean_std", [0, 0], [1, -1], 1e-8, r"std\[1\]: expected a number not below 0, got -1"),
        ("mean_std", [0, 0], [1, 0], 0.0, r"std\[1\]: expected a number above 0, got 0"),
        ("min_max", [0, 3], [1, 3], 0.0, r"max\[1\]: expected a number above 3, which is min\[1\]"),
        ("quantile10", [0, 3], [1, 2], 1e-8, r"q90\[1\]: expected a number not below 3"),
        ("quantiles", [True, False], [1, 2], 1e-8, "q01: expected numbers, got bool"),
        ("quantiles", [0, 0], ["1", "2"], 1e-8, "q99: expected numbers, got <U1"),
        ("quantiles", [0, 0], [1, np.inf], 1e-8, r"q99\[1\]: expected a finite number .* got inf"),
        ("quantiles", [0], [1], float("nan"), "eps: expected a finite number, 0 or more, got nan"),
    ],
)
def test_arrays_that_are_no_statistics(
    mode: str, low: Any, high: Any, eps: float, said: str
) -> None:
    arrays = {name: np.asarray(v) for name, v in zip(FIELDS[mode], (low, high), strict=True)}
    with pytest.raises(OptionError, match=f"statistics of x, {said}"):
        from_arrays("statistics of x", mode, arrays, guarded=True, eps=eps)


def test_a_joint_that_never_moved_is_fine_where_an_eps_is_added(tmp_path: Path) -> None:
    same = {"q01": np.array([3.0]), "q99": np.array([3.0])}
    guarded = from_arrays("x", "quantiles", same, guarded=True, eps=1e-8)
    added = from_arrays("x", "quantiles", same, guarded=False, eps=0.0)
    for found in (guarded, added):
        assert found.normalise(np.array([3.0]))[0] == -1.0
        assert found.restore(np.array([1.0]))[0] == pytest.approx(3.0, abs=2e-6)


def test_missing_statistics(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="norm_stats .*No such file"):
        processor(norm_stats=tmp_path / "none.json")


@pytest.mark.parametrize("method", ["pillow", "torch"])
def test_images_that_cannot_be_written_are_resized_alike(
    method: str, recwarn: pytest.WarningsRecorder
) -> None:
    pixels = np.arange(40 * 30 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 30, 3)
    view = np.frombuffer(pixels.tobytes(), np.uint8).reshape(pixels.shape)
    expected = resize_with_pad(pixels, 14, method)
    np.testing.assert_array_equal(resize_with_pad(view, 14, method), expected)
    assert not recwarn.list
