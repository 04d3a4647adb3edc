"""Which kernel an op takes where several were built for its shape: data of a device, one table.

An op chooses its kernel as ever; a :class:`Forms` then says what stands in its place. The default
has nothing in anyone's place. Forms give the same sums, not always the same bits, so a device with
others than the default says so in the identity of its kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .skinny import SkinnyPlan


@dataclass(frozen=True)
class Forms:
    """One choice of kernels.

    Attributes:
        name: of the choice; empty for the default.
        plans: the kernel that an op has chosen -> those in its place, of which the one that keeps
            most multiprocessors busy at once is taken, if any takes the shape.
        kernels: the same for kernels without a plan: another entry of the same parameters.
    """

    name: str = ""
    plans: Mapping[str, tuple[SkinnyPlan, ...]] = field(default_factory=dict)
    kernels: Mapping[str, str] = field(default_factory=dict)


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
    """A choice by name.

    Raises:
        KeyError: there is none of this name.
    """
    return FORMS[name]
