"""Which kernel an op takes where several were built for its shape: data of a device, one table.

An op chooses its kernel as ever; a :class:`Forms` then says what stands in its place. The default
has nothing in anyone's place. Forms give the same sums, not always the same bits, so a device with
others than the default says so in the identity of its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

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
    fused: tuple[str, ...] = FUSED
    ahead: int = 0


def _direct(norm: bool, depth: int, rows: int, cluster: int, shared: int, kind: str) -> SkinnyPlan:
    op, tokens = "layer_norm_linear" if norm else "linear", 44 if "deep" in kind else 48
    name = f"{op}_k{depth}_{rows}_by_{cluster}_{kind}_sm90"
    asks = "" if "early" in kind else "map"
    return SkinnyPlan(name, depth, tokens, rows, shared, cluster=cluster, tiles=True, asks=asks)


def _asking(norm: bool, depth: int, cluster: int, shared: int) -> SkinnyPlan:
    op, tokens = ("layer_norm_linear", 44) if norm else ("linear", 48)
    name = f"{op}_k{depth}_by_{cluster}_asking_i8_sm90"
    return SkinnyPlan(name, depth, tokens, 64, shared, cluster=cluster, asks="bytes")


# Of the products of few rows that are there: what follows a norm, what is added to the stream.
_NORM = tuple(f"layer_norm_linear_k1536_{rows}_bf16_sm90" for rows in (48, 72, 96))
_NORM_I8 = ("layer_norm_linear_k1536_by_2_i8_sm90", "layer_norm_linear_k1536_by_4_i8_sm90")
_WIDE, _WIDE_I8 = "linear_k1536_48_bf16_sm90", "linear_k1536_by_4_i8_sm90"
_DEEP, _DEEP_I8 = "linear_k6144_96_bf16_sm90", "linear_k6144_by_8_i8_sm90"


def _products(
    norm: tuple[SkinnyPlan, ...], wide: SkinnyPlan, deep: SkinnyPlan, *, whole: bool = False
) -> dict[str, tuple[SkinnyPlan, ...]]:
    """Every product of the head in one form."""
    of_norms = dict.fromkeys(_NORM_I8 if whole else _NORM, norm)
    return {
        **of_norms,
        _WIDE_I8 if whole else _WIDE: (wide,),
        _DEEP_I8 if whole else _DEEP: (deep,),
    }


def _norms(kind: str, *sizes: tuple[int, int, int]) -> tuple[SkinnyPlan, ...]:
    return tuple(_direct(True, 1536, *size, kind) for size in sizes)


_EARLY = _products(
    _norms("early_bf16", (48, 4, 90_176), (72, 2, 85_872), (96, 2, 103_152)),
    _direct(False, 1536, 48, 4, 83_008, "early_bf16"),
    _direct(False, 6144, 96, 8, 92_208, "early_bf16"),
)
_EARLY_PAIRS = _products(
    _norms("early_bf16", (24, 2, 88_208), (72, 2, 85_872), (96, 2, 103_152)),
    _direct(False, 1536, 24, 2, 78_416, "early_bf16"),
    _direct(False, 6144, 96, 6, 92_208, "early_bf16"),
)
_DIRECT = _products(
    _norms("direct_bf16", (48, 4, 53_504), (72, 2, 79_936), (96, 2, 103_360)),
    _direct(False, 1536, 48, 4, 46_144, "direct_bf16"),
    _direct(False, 6144, 96, 8, 92_224, "direct_bf16"),
)
_PAIRS_NORM = _norms("direct_bf16", (24, 2, 51_568), (72, 2, 79_936), (96, 2, 103_360))
_PAIRS_WIDE = _direct(False, 1536, 24, 2, 41_584, "direct_bf16")
_DEEP_PAIRS = _direct(False, 6144, 96, 6, 92_224, "direct_bf16")
_DIRECT_PAIRS = _products(_PAIRS_NORM, _PAIRS_WIDE, _DEEP_PAIRS)
_DIRECT_DEEP = _products(
    _PAIRS_NORM, _PAIRS_WIDE, _direct(False, 6144, 96, 8, 115_280, "deep_bf16")
)
_PAIRS_NORM_I8 = _norms("direct_i8", (24, 2, 39_280), (72, 2, 98_416), (96, 2, 103_376))
_PAIRS_WIDE_I8 = _direct(False, 1536, 24, 2, 29_296, "direct_i8")
_DIRECT_I8 = _products(
    _PAIRS_NORM_I8, _PAIRS_WIDE_I8, _direct(False, 6144, 96, 8, 104_544, "direct_i8"), whole=True
)
_DIRECT_PAIRS_I8 = _products(
    _PAIRS_NORM_I8, _PAIRS_WIDE_I8, _direct(False, 6144, 96, 6, 104_544, "direct_i8"), whole=True
)
_ASKING_I8 = _products(
    (_asking(True, 1536, 2, 48_416), _asking(True, 1536, 4, 45_344)),
    _asking(False, 1536, 4, 38_432),
    _asking(False, 6144, 8, 38_432),
    whole=True,
)
_EARLY_FUSED = {
    f"layer_norm_attention{kind}_k1536_d48_bf16_sm90": (
        f"layer_norm_attention{kind}_k1536_d48_early_bf16_sm90"
    )
    for kind in FUSED
}
_SHORT = {"attention_heads_d48_bf16": "attention_heads_d48_short_bf16_hopper"}


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
    # The head of GR00T, bf16.
    Forms("self apart", fused=("",)),
    Forms("apart", fused=()),
    Forms("apart, short", kernels=_SHORT, fused=()),
    Forms("early", _EARLY, _EARLY_FUSED),
    Forms("early, apart", _EARLY, _SHORT, ()),
    Forms("early, pairs", _EARLY_PAIRS, _SHORT, ()),
    Forms("direct", _DIRECT, _SHORT, ()),
    Forms("direct, pairs", _DIRECT_PAIRS, _SHORT, ()),
    Forms("direct, deep", _DIRECT_DEEP, _SHORT, ()),
    # The same, int8.
    Forms("i8 short", kernels=_SHORT),
    Forms("i8 asking", _ASKING_I8, _SHORT, ahead=1),
    Forms("i8 direct", _DIRECT_I8, _SHORT),
    Forms("i8 direct, pairs", _DIRECT_PAIRS_I8, _SHORT),
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
