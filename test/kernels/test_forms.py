"""Forms of kernels: what every one launches, against what the sources declare and assert."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu
from flashrt_core.kernels.ada_rms_norm_qkv_rope_kv import ada_rms_norm_qkv_rope_kv
from flashrt_core.kernels.attention_heads import SHORT_SHARED
from flashrt_core.kernels.forms import FORMS, Forms, find_forms
from flashrt_core.kernels.linear_gated_residual import linear_gated_residual

from .signatures import OPS, CheckingLauncher, Lane

_TRIALS = (OPS / "trial_forms.cu").read_text()


def _weight(rows: int, depth: int, whole: bool) -> tuple[Tensor, dict[str, Any]]:
    if not whole:
        return torch.empty(rows, depth, dtype=torch.bfloat16), {}
    weight = torch.empty(rows, depth, dtype=torch.int8)
    return weight, {"weight_scale": torch.empty(rows)}


def _rows(count: int, width: int) -> Tensor:
    return torch.empty(count, width, dtype=torch.bfloat16)


def _expert(lane: Lane, whole: bool) -> None:
    """The products of a layer of the expert."""
    x, scale = _rows(10, 1024), torch.empty(1024)
    weight, scales = _weight(2560, 1024, whole)
    k, v = torch.empty(10, 2, 256, dtype=torch.bfloat16).unbind(1)
    norm: dict[str, Any] = {"eps": 1e-6}
    rope = torch.empty(10, 256)
    ada_rms_norm_qkv_rope_kv(
        lane, x, scale, scale, weight, rope, _rows(10, 2048), k, v, head_dim=256, **norm, **scales
    )
    weight, scales = _weight(8192, 1024, whole)
    ada_rms_norm_geglu(lane, x, scale, scale, weight, _rows(10, 4096), **norm, **scales)
    for depth in (2048, 4096):
        weight, scales = _weight(1024, depth, whole)
        linear_gated_residual(lane, _rows(10, depth), weight, scale, x, **scales)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_launches_what_it_names(name: str) -> None:
    forms, launcher = FORMS[name], CheckingLauncher(forms=FORMS[name])
    for whole in (False, True):
        _expert(Lane(launcher), whole)
    kernels = {launch.kernel for launch in launcher.launches}
    planned = {plan.kernel for plans in forms.plans.values() for plan in plans}
    # Every kernel that has others in its place is replaced wherever one of them fits.
    assert not kernels & set(forms.plans), kernels & set(forms.plans)
    assert bool(kernels & planned) == bool(planned & set(_entries()))
    if name == "":
        assert forms == Forms() and not kernels & set(_entries())


def _entries() -> dict[str, str]:
    """Trial kernels of the source -> their shapes."""
    return dict(re.findall(r"^FLASHRT_\w+\((\w+), (\w+)(?:, \d)?\)$", _TRIALS, re.MULTILINE))


def test_plans_give_the_shared_memory_that_the_source_asserts() -> None:
    entries = _entries()
    for plan in {
        plan for forms in FORMS.values() for some in forms.plans.values() for plan in some
    }:
        shape = entries[plan.kernel]
        assert f"{shape}::kSharedBytes == {plan.shared_bytes}," in _TRIALS, plan.kernel
    heads = (OPS / "attention_heads.cu").read_text()
    assert f"Short48::kSharedBytes == {SHORT_SHARED}," in heads


def test_a_choice_has_a_name() -> None:
    assert find_forms("lean") is FORMS["lean"]
    with pytest.raises(KeyError):
        find_forms("none of them")
