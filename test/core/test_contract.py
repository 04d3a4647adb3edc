"""Every contradiction a contract can hold is refused at construction, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashrt_core.contract import (
    BufferSpec,
    Contract,
    DType,
    InputSpec,
    OutputSpec,
    Rate,
    RegionSpec,
    Role,
    ShapeKey,
    StageSpec,
    Update,
)
from flashrt_core.errors import ContractError, ShapeKeyError

from . import toy


def with_stage(name: str, /, **fields: object) -> Contract:
    spec = toy.contract()
    stages = tuple(replace(s, **fields) if s.name == name else s for s in spec.stages)
    return toy.changed(spec, stages=stages)


def with_input(name: str, /, **fields: object) -> Contract:
    spec = toy.contract()
    inputs = tuple(replace(i, **fields) if i.name == name else i for i in spec.inputs)
    return toy.changed(spec, inputs=inputs)


def with_region(region: RegionSpec) -> Contract:
    spec = toy.contract()
    return toy.changed(
        spec, regions={**spec.regions, toy.SMALL: (*toy.regions(toy.SMALL)[1:], region)}
    )


def test_the_toy_contract_is_consistent() -> None:
    spec = toy.contract()
    assert [stage.name for stage in spec.decision_stages] == ["context", "action"]
    assert spec.region_bytes() == 2 * 16 + 16 + 4
    assert {i.name for i in spec.inputs_of(spec.stage("action"))} == {"noise"}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: with_stage("context", reads=("image", "nothing")),
            ["'nothing'", "expected one of"],
        ),
        (lambda: with_stage("context", requires=("absent",)), ["'absent'", "stage"]),
        (lambda: with_stage("context", requires=("prompt", "action")), ["'action'", "cycles"]),
        (lambda: with_stage("context", requires=("prompt", "context")), ["'context'", "cycles"]),
        (lambda: with_stage("context", requires=()), ["'embedding'", "prerequisites"]),
        (lambda: with_stage("action", writes=("actions", "x", "weights")), ["static", "weights"]),
        (lambda: with_stage("action", writes=("actions",)), ["scratch", "'x'"]),
        (lambda: with_stage("action", name="context"), ["'context' twice"]),
        (lambda: with_input("tokens", transform=None), ["'tokens'", "transform exactly when"]),
        (lambda: with_input("image", transform="prompt"), ["'image'", "transform exactly when"]),
        (
            lambda: with_input("tokens", transform="context"),
            ["'tokens'", "transform stage that reads"],
        ),
        (lambda: with_input("image", buffer="kv"), ["'image'", "[2, 5]"]),
        (lambda: with_input("noise", buffer="x"), ["'noise'", "swap buffer", "scratch"]),
        (lambda: with_input("noise", dtype=DType.F16), ["'noise'", "float16"]),
        (
            lambda: with_region(RegionSpec("kv", "kv", 0, 8, rows=2, pitch=36)),
            ["'kv'", "40 bytes", "byte 44"],
        ),
        (lambda: with_region(RegionSpec("kv", "kv", -4, 8)), ["'kv'", "offset"]),
        (
            lambda: with_region(RegionSpec("kv", "kv", 0, 8, rows=2, pitch=4)),
            ["'kv'", "pitch >= 8"],
        ),
        (lambda: with_region(RegionSpec("other", "weights", 0, 4)), ["every state buffer", "'kv'"]),
        (lambda: with_region(RegionSpec("offset", "kv", 0, 4)), ["'offset' twice"]),
        (lambda: toy.changed(toy.contract(), shapes=(toy.SMALL,)), ["a list for every shape"]),
        (lambda: toy.changed(toy.contract(), shapes=()), ["at least one"]),
        (
            lambda: toy.changed(
                toy.contract(),
                buffers=(*toy.buffers(), BufferSpec("empty", (0, 3), DType.F32, Role.SCRATCH)),
            ),
            ["'empty'", "sizes >= 1"],
        ),
        (
            lambda: toy.changed(
                toy.contract(), outputs=(OutputSpec("actions", "actions", (3, 2), DType.F32),)
            ),
            ["output 'actions'", "[2, 3]", "[3, 2]"],
        ),
        (
            lambda: toy.changed(
                toy.contract(),
                inputs=(
                    *toy.contract().inputs,
                    InputSpec("again", "noise", (2, 3), DType.F32, Update.SWAP, Rate.CHUNK),
                ),
            ),
            ["'again'", "window of its own"],
        ),
    ],
)
def test_contradictions_are_refused(build, words) -> None:
    with pytest.raises(ContractError) as caught:
        build()
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


def test_state_that_nobody_writes_is_refused() -> None:
    with pytest.raises(ContractError, match=r"reads state 'kv'.*\(none\)"):
        with_stage("context", writes=())


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ContractError, match=r"expected one of \['image', 'noise', 'tokens'\]"):
        toy.contract().input("camera")


def test_shape_for_takes_the_smallest_bucket_and_lists_what_is_captured() -> None:
    spec = toy.contract()
    ask = {"views": 1, "horizon": 2, "steps": 1}
    assert spec.shape_for(prompt_tokens=1, **ask) == toy.SMALL
    assert spec.shape_for(prompt_tokens=3, **ask) == toy.LARGE
    with pytest.raises(
        ShapeKeyError, match=r"1 views, 2 tokens.*; 1 views, 4 tokens.*got 1 views, 5"
    ):
        spec.shape_for(prompt_tokens=5, **ask)


def test_region_ends_where_its_last_row_ends() -> None:
    assert RegionSpec("r", "b", 4, 8, rows=3, pitch=20).end == 4 + 2 * 20 + 8
    whole = RegionSpec.whole(BufferSpec("b", (3, 2), DType.BF16, Role.STATE))
    assert (whole.nbytes, whole.end, whole.name) == (12, 12, "b")


def test_a_forward_stage_cycle_cannot_be_written() -> None:
    stages = (
        StageSpec("a", (), ("kv",), Rate.CHUNK, requires=("b",)),
        StageSpec("b", (), ("embedding", "offset"), Rate.CHUNK, requires=("a",)),
    )
    with pytest.raises(ContractError, match="no cycles"):
        toy.changed(toy.contract(), stages=stages, inputs=())


def test_shape_keys_order_by_size() -> None:
    assert ShapeKey(1, 8, 2, 1) < ShapeKey(1, 16, 2, 1) < ShapeKey(2, 8, 2, 1)
