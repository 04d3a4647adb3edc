"""Packing, step tables, and the random stand-in for a checkpoint."""

from __future__ import annotations

import struct

import pytest
import torch

from flashrt_core.errors import OptionError, WeightsError
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.policies.pi05.numerics import PROFILES, step_times
from flashrt_core.policies.pi05.schedule import step_size, time_embedding
from flashrt_core.weights import OUTLIER_ENERGY, TensorSpec, open_weights

from .harness import TWO, Pipeline, same_bits

TINY = POLICY.config("tiny")
TRUNK = "paligemma_with_expert.paligemma.model.language_model.layers."
EXPERT = "paligemma_with_expert.gemma_expert.model."
TOWER = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return Pipeline(TINY)


def test_merged_and_interleaved_rows(pipeline: Pipeline) -> None:
    get, buffers = pipeline.source.get, pipeline.buffers
    packed = buffers["expert.qkv_weight"][1]
    parts = [get(f"{EXPERT}layers.1.self_attn.{part}_proj.weight") for part in "qkv"]
    assert torch.equal(packed, torch.cat(parts))
    packed = buffers["trunk.gate_up_weight"][0]
    assert torch.equal(packed[6], get(f"{TRUNK}0.mlp.gate_proj.weight")[3])
    assert torch.equal(packed[7], get(f"{TRUNK}0.mlp.up_proj.weight")[3])
    last = TINY.trunk.depth - 1
    parts = [get(f"{TRUNK}{last}.self_attn.{part}_proj.weight") for part in "kv"]
    assert torch.equal(buffers["trunk.last_kv_weight"], torch.cat(parts))
    parts = [get(f"{TOWER}encoder.layers.1.self_attn.{part}_proj.bias") for part in "qkv"]
    assert torch.equal(buffers["vision.qkv_bias"][1], torch.cat(parts))
    patch = get(f"{TOWER}embeddings.patch_embedding.weight")
    assert torch.equal(buffers["vision.patch_weight"], patch.flatten(1))


def test_every_static_buffer_is_filled() -> None:
    contract = POLICY.contract(TINY, POLICY.shapes(TINY, 2), TWO, "fp32")
    static = [spec for spec in contract.buffers if spec.role.value == "static"]
    buffers = {spec.name: torch.full(spec.shape, torch.nan) for spec in static}
    POLICY.pack(TINY, open_weights("random:3", POLICY.tensors(TINY)), buffers)
    for name, buffer in buffers.items():
        assert buffer.isfinite().all(), name


def test_bf16_weights_are_the_rounded_float32_ones(pipeline: Pipeline) -> None:
    half = Pipeline(TINY, precision="bf16").buffers
    for name in ("trunk.down_weight", "vision.fc1_bias", "projector.weight", "trunk.embedding"):
        assert torch.equal(half[name], pipeline.buffers[name].bfloat16())
    for name in ("expert.modulation", "trunk.norm1_weight", "expert.action_in_weight"):
        assert torch.equal(half[name], pipeline.buffers[name])


def test_step_times_have_the_bits_of_the_official_sampler() -> None:
    bits = " ".join(struct.pack(">f", time).hex() for time in step_times(PROFILES["openpi"], 10))
    assert bits == (
        "3f800000 3f666666 3f4ccccc 3f333332 3f199998 3efffffd 3eccccca 3e999997 3e4cccc8 3dccccc3"
    )
    assert struct.pack(">f", step_size(10)).hex() == "bdcccccd"
    for steps in (4, 5, 20, 50):
        assert len(step_times(PROFILES["openpi"], steps)) == steps


def test_time_embedding_known_values() -> None:
    table = time_embedding([1.0, 0.25], 1024)
    assert table.shape == (2, 1024) and table.dtype == torch.float32
    # Slowest period 4: angles pi/2 and pi/8. Fastest period 0.004: 250 and 62.5 whole turns.
    assert table[0, 511].item() == pytest.approx(1.0)
    assert table[1, 511].item() == pytest.approx(0.3826834)
    assert table[0, 1023].item() == pytest.approx(0.0, abs=1e-7)
    assert table[0, 0].item() == pytest.approx(0.0, abs=1e-6)
    assert table[0, 512].item() == pytest.approx(1.0)
    assert table[1, 512].item() == pytest.approx(-1.0)


def test_modulation_table(pipeline: Pipeline) -> None:
    """Row by row from the formula, in float64."""
    get, table = pipeline.source.get, pipeline.buffers["expert.modulation"]
    width = TINY.expert.width
    assert table.shape == (10, 7, 3, width)

    def dense(name: str, x: torch.Tensor) -> torch.Tensor:
        return get(f"{name}.weight").double() @ x + get(f"{name}.bias").double()

    for step in (0, 6):
        cond = time_embedding([step_times(TINY.numerics, 10)[step]], width)[0].double()
        for name in ("time_mlp_in", "time_mlp_out"):
            cond = dense(name, cond)
            cond = cond / (1 + torch.exp(-cond))
        for site, name in (
            (0, f"{EXPERT}layers.0.input_layernorm"),
            (3, f"{EXPERT}layers.1.post_attention_layernorm"),
            (6, f"{EXPERT}norm"),
        ):
            expected = dense(f"{name}.dense", cond).reshape(3, width)
            assert torch.allclose(table[step, site].double(), expected, atol=1e-5)


SPECS = {
    "a": TensorSpec((300, 200), mean=1.0, std=0.1),
    "b": TensorSpec((300, 200), std=0.5),
    "c": TensorSpec((7,), std=1.0),
}


def test_random_tensors_do_not_depend_on_order_or_company() -> None:
    first, second = open_weights("random:7", SPECS), open_weights("random:7", SPECS)
    forward = {name: first.get(name) for name in "abc"}
    backward = {name: second.get(name) for name in "cba"}
    alone = open_weights("random:7", {"b": SPECS["b"]}).get("b")
    for name in "abc":
        assert same_bits(forward[name], backward[name])
    assert same_bits(alone, forward["b"])
    assert same_bits(first.get("a"), forward["a"])
    assert list(first.names()) == ["a", "b", "c"]


def test_random_tensors_differ_by_name_and_seed_and_have_their_statistics() -> None:
    source, other = open_weights("random:7", SPECS), open_weights("random:8", SPECS)
    a, b = source.get("a"), source.get("b")
    assert a.dtype == torch.float32
    correlation = torch.corrcoef(torch.stack((a.flatten(), b.flatten())))[0, 1]
    assert abs(float(correlation)) < 0.02
    assert not torch.equal(a, other.get("a"))
    # 60,000 draws: the mean is good to 0.4 % of a deviation, the deviation to 0.3 %.
    assert float(a.mean()) == pytest.approx(1.0, abs=0.002)
    assert float(a.std()) == pytest.approx(0.1, rel=0.015)
    assert float(b.std()) == pytest.approx(0.5, rel=0.015)


def test_digest_names_the_contents() -> None:
    digest = open_weights("random:7", SPECS).digest
    assert len(digest) == 64
    assert open_weights("random:7", dict(reversed(SPECS.items()))).digest == digest
    assert open_weights("random:8", SPECS).digest != digest
    changed = {**SPECS, "c": TensorSpec((8,))}
    assert open_weights("random:7", changed).digest != digest


def test_unknown_tensor() -> None:
    with pytest.raises(WeightsError, match="tensor 'd'"):
        open_weights("random:7", SPECS).get("d")


@pytest.mark.parametrize("uri", ["random:", "random:x", "random:-1", "random:1.5", "random:²"])
def test_bad_seed(uri: str) -> None:
    with pytest.raises(OptionError, match="'checkpoint': expected random:<whole number>"):
        open_weights(uri, SPECS)


@pytest.mark.parametrize("uri", ["model.safetensors", "random", ""])
def test_missing_checkpoints(uri: str) -> None:
    with pytest.raises(WeightsError, match=r"expected a folder with model\.safetensors"):
        open_weights(uri, SPECS)


def test_outliers_are_the_same_rows_of_every_writer_of_a_stream() -> None:
    specs = {
        "first": TensorSpec((2048, 16), outliers=True),
        "second": TensorSpec((2048, 32), outliers=True),
        "narrow": TensorSpec((20, 16), outliers=True),
        "other": TensorSpec((2048, 16)),
    }
    plain, large = open_weights("random:7", specs), open_weights("outliers:7", specs)
    changed = {}
    for name in specs:
        before, after = plain.get(name), large.get(name)
        rows = (before != after).any(dim=1).nonzero().flatten().tolist()
        if rows:
            gain = (OUTLIER_ENERGY * len(before) / len(rows)) ** 0.5
            assert torch.allclose(after[rows], before[rows] * gain)
        changed[name] = rows
    assert changed["first"] == changed["second"]
    assert {name: len(rows) for name, rows in changed.items()} == {
        "first": 4, "second": 4, "narrow": 1, "other": 0,
    }  # fmt: skip
    digests = {open_weights(f"{kind}:{seed}", specs).digest for kind in ("random", "outliers")
               for seed in (7, 8)}  # fmt: skip
    assert len(digests) == 4
    with pytest.raises(OptionError, match="outliers:<whole number>"):
        open_weights("outliers:x", specs)


def test_outliers_of_the_policy_are_in_its_streams_values_and_hidden_units() -> None:
    marked = {name for name, spec in POLICY.tensors(TINY).items() if spec.outliers}
    for part in ("self_attn.o_proj", "mlp.down_proj", "mlp.up_proj", "self_attn.v_proj"):
        assert f"{EXPERT}layers.0.{part}.weight" in marked
    assert not {name for name in marked if "action_" in name or name.endswith("bias")}
    # Three of an image layer, four of a trunk or expert layer, and the projector.
    assert len(marked) == 3 * TINY.vision.depth + 4 * (TINY.trunk.depth + TINY.expert.depth) + 1
