"""Which kernel an op takes where several were built for its shape: data of a device, one table.

An op chooses its kernel as ever; a :class:`Forms` then says what stands in its place. The default
has nothing in anyone's place. Forms give the same sums, not always the same bits, so a device with
others than the default says so in the identity of its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from .skinny import SkinnyPlan

#: Kinds of fused attention of ``layer_norm_attention``: to a context, and of rows to each other.
FUSED = ("", "_self")


@dataclass(frozen=True)
class Forms:
    """One choice of kernels.

    Attributes:
        name: of the choice; empty for the default.
        plans: the kernel that an op has chosen -> those in its place, of which the one that keeps
            most multiprocessors busy at once is taken, if any takes the shape.
        kernels: the same for kernels without a plan: another entry of the same parameters.
        fused: kinds of attention that one kernel makes together with the product in front.
        ahead: a product asks for the weight of the one so many further on; 0: for none.
    """

    name: str = ""
    plans: Mapping[str, tuple[SkinnyPlan, ...]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)
    fused: tuple[str, ...] = ()
    ahead: int = 1


def _norms(kind: str, **shared: int) -> dict[str, tuple[SkinnyPlan, ...]]:
    """The head's products behind a norm, by the rows of a block, in one form."""
    found: dict[str, tuple[SkinnyPlan, ...]] = {}
    for name, size in shared.items():
        rows = int(name.removeprefix("of_"))
        cluster = 4 if rows == 48 else 2
        entry = f"layer_norm_linear_k1536_{rows}"
        plan = SkinnyPlan(
            f"{entry}_{kind}_bf16_sm90", 1536, 48, rows, size, cluster=cluster, tiles=True
        )
        found[f"{entry}_bf16_sm90"] = (plan,)
    return found


_UNDER = _norms("under", of_48=90_176, of_72=85_872, of_96=103_152)
_DEEP = {
    **_UNDER,
    **_norms("deep", of_72=113_344, of_96=115_824),
    "linear_k6144_96_bf16_sm90": (
        SkinnyPlan("linear_k6144_96_deep_bf16_sm90", 6144, 48, 96, 114_528, cluster=8, tiles=True),
    ),
}
_ASKING = {
    **_UNDER,
    **_norms("asking", of_72=113_344, of_96=115_824),
    "linear_k6144_96_bf16_sm90": (
        SkinnyPlan(
            "linear_k6144_96_asking_bf16_sm90", 6144, 48, 96, 114_528, cluster=8, tiles=True
        ),
    ),
}
_ASKING_SELF = {
    "layer_norm_attention_self_k1536_d48_bf16_sm90": (
        "layer_norm_attention_self_k1536_d48_asking_bf16_sm90"
    )
}


def _resident(
    norm: bool, depth: int, cluster: int, shared: int
) -> dict[str, tuple[SkinnyPlan, ...]]:
    """A product of the head with int8 weights that has x whole."""
    op, tokens = ("layer_norm_linear", 44) if norm else ("linear", 48)
    entry = f"{op}_k{depth}_by_{cluster}"
    name = f"{entry}_resident_i8_sm90"
    kept: dict[str, Any] = {"cluster": cluster, "resident": True, "asks": True}
    return {f"{entry}_i8_sm90": (SkinnyPlan(name, depth, tokens, 64, shared, **kept),)}


_RESIDENT_NORM = {**_resident(True, 1536, 2, 89_200), **_resident(True, 1536, 4, 52_288)}
_RESIDENT_WIDE = {
    **_RESIDENT_NORM,
    "layer_norm_linear_k1536_by_2_i8_sm90": (
        SkinnyPlan(
            "layer_norm_linear_k1536_128_resident_i8_sm90",
            1536,
            44,
            128,
            64_576,
            cluster=4,
            resident=True,
            asks=True,
        ),
    ),
}
_RESIDENT_DOWN = {**_resident(False, 6144, 8, 86_128), **_resident(False, 1536, 4, 49_216)}


def _expert(kind: str) -> dict[str, tuple[SkinnyPlan, ...]]:
    """The expert's products for few tokens in one form; "warm" where that is built."""
    found: dict[str, tuple[SkinnyPlan, ...]] = {}
    for into in ("bf16", "i8"):
        for op, depth, tokens, rows, shared, cluster in (
            ("ada_rms_norm_qkv_rope_kv", 1024, 14, 80, 51_552, 4),
            ("ada_rms_norm_geglu", 1024, 14, 64, 137_808 if into == "bf16" else 70_224, 1),
            ("linear_gated_residual_k2048", 2048, 16, 32, 12_336, 4),
            ("linear_gated_residual_k4096", 4096, 16, 32, 22_576, 4),
        ):
            name, threads = f"{op}_{tokens}_{into}", 128 if depth == 2048 else 256
            form = kind if into == "i8" and "geglu" not in op else "lean"
            entry = f"{name}_{form}_hopper"
            plan = SkinnyPlan(entry, depth, tokens, rows, shared, threads, cluster)
            found[f"{name}_cluster"] = (plan,)
    return found


def _by_two(*which: str) -> dict[str, tuple[SkinnyPlan, ...]]:
    """As "lean", with some products in clusters of two blocks."""
    found = _expert("lean")
    for into, qkv, down in (("bf16", 75_472, 67_616), ("i8", 42_704, 34_336)):
        for op, depth, tokens, rows, shared in (
            ("ada_rms_norm_qkv_rope_kv", 1024, 14, 64, qkv),
            ("linear_gated_residual_k4096", 4096, 16, 16, down),
        ):
            name = f"{op}_{tokens}_{into}"
            entry = f"{name}_by_2_hopper"
            plan = SkinnyPlan(entry, depth, tokens, rows, shared, cluster=2)
            if any(part in op for part in which):
                found[f"{name}_cluster"] = (plan,)
    return found


def _wide(*which: str) -> dict[str, tuple[SkinnyPlan, ...]]:
    """As "lean", with some products of 64 rows a block by warpgroups."""
    found = _expert("lean")
    for into, geglu, down in (("bf16", 146_592, 144_416), ("i8", 15_136, 12_832)):
        for op, depth, tokens, shared, cluster in (
            ("ada_rms_norm_qkv_rope_kv", 1024, 14, 16_288, 2),
            ("ada_rms_norm_geglu", 1024, 14, geglu, 1),
            ("linear_gated_residual_k2048", 2048, 16, 12_832, 4),
            ("linear_gated_residual_k4096", 4096, 16, down, 4),
        ):
            name = f"{op}_{tokens}_{into}"
            plan = SkinnyPlan(f"{name}_wide_sm90", depth, tokens, 64, shared, cluster=cluster)
            if any(part in op for part in which):
                found[f"{name}_cluster"] = (plan,)
    return found


_LEAN_QUERIES = {
    f"attention_few_queries_d256_8_{keys}_bf16_cluster": (
        f"attention_few_queries_d256_8_{keys}_bf16_lean_hopper"
    )
    for keys in (640, 1024)
}

_DEFAULT = Forms()
_CHOICES = (
    _DEFAULT,
    # The head of GR00T.
    Forms("fused", fused=FUSED),
    Forms("self apart", fused=("",)),
    Forms("under", _UNDER),
    Forms("fused, under", _UNDER, fused=FUSED),
    Forms("self apart, under", _UNDER, fused=("",)),
    Forms("deep", _DEEP),
    Forms("fused, deep", _DEEP, fused=FUSED),
    Forms("self apart, deep", _DEEP, fused=("",)),
    Forms("asking", _ASKING),
    Forms("fused, asking", _ASKING, _ASKING_SELF, FUSED),
    Forms("asking nothing", ahead=0),
    Forms("resident", {**_RESIDENT_NORM, **_RESIDENT_DOWN}),
    Forms("resident wide", {**_RESIDENT_WIDE, **_RESIDENT_DOWN}),
    Forms("resident norm", _RESIDENT_NORM),
    Forms("resident down", _RESIDENT_DOWN),
    # The expert of pi0.5.
    Forms("lean", _expert("lean"), _LEAN_QUERIES),
    Forms("warm", _expert("warm"), _LEAN_QUERIES),
    Forms("by two", _by_two("qkv", "k4096"), _LEAN_QUERIES),
    Forms("qkv by two", _by_two("qkv"), _LEAN_QUERIES),
    Forms("down by two", _by_two("k4096"), _LEAN_QUERIES),
    Forms("wide", _wide("qkv", "geglu", "k2048", "k4096"), _LEAN_QUERIES),
    Forms("wide, qkv, geglu", _wide("qkv", "geglu"), _LEAN_QUERIES),
)
#: By name.
FORMS: Mapping[str, Forms] = MappingProxyType({forms.name: forms for forms in _CHOICES})


def find_forms(name: str) -> Forms:
    """A choice by name; with ``+1`` or ``+2`` behind it, of products that ask so far ahead.

    Raises:
        KeyError: there is none of this name.
    """
    plain, _, ahead = name.partition("+")
    forms = FORMS[plain]
    return replace(forms, name=name, ahead=int(ahead)) if ahead else forms
