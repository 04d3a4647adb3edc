"""Other forms of the products of π0.5's expert (csrc/ops/expert_forms.cu), for forms.py.

All can ask for the weight of a product further on. ``qkv`` and the others name what a form has in
the place of the kernel that its op chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .skinny import SkinnyPlan

_Plans = Mapping[str, tuple[SkinnyPlan, ...]]
_QKV, _OUT, _GEGLU, _DOWN = (
    "ada_rms_norm_qkv_rope_kv",
    "linear_gated_residual_k2048",
    "ada_rms_norm_geglu",
    "linear_gated_residual_k4096",
)


def _plan(
    op: str, tokens: int, rows: int, shared: int, form: str, cluster: int = 1, threads: int = 256
) -> SkinnyPlan:
    depth = {_OUT: 2048, _DOWN: 4096}.get(op, 1024)
    entry = f"{op}_{tokens}_{form}_hopper"
    return SkinnyPlan(entry, depth, tokens, rows, shared, threads, cluster, asks="bytes")


#: For many tokens, int8.
_MANY: _Plans = {
    f"{_QKV}_54_i8_sm90": (_plan(_QKV, 54, 64, 48_160, "i8_asking", 4),),
    f"{_OUT}_56_i8_sm90": (_plan(_OUT, 56, 64, 44_832, "i8_asking", 8),),
    f"{_GEGLU}_54_i8_sm90": (_plan(_GEGLU, 54, 64, 49_248, "i8_asking", 2),),
    f"{_DOWN}_56_i8_sm90": (_plan(_DOWN, 56, 64, 44_832, "i8_asking", 8),),
}
#: For few, the same kernels as by default but for what they ask.
_FEW: _Plans = {
    f"{_QKV}_14_bf16_cluster": (_plan(_QKV, 14, 80, 51_552, "bf16_asking", 4),),
    f"{_OUT}_16_bf16_cluster": (_plan(_OUT, 16, 32, 12_336, "bf16_asking", 4, 128),),
    f"{_GEGLU}_14_bf16_cluster": (_plan(_GEGLU, 14, 64, 137_808, "bf16_asking"),),
    f"{_DOWN}_16_bf16_cluster": (_plan(_DOWN, 16, 32, 22_576, "bf16_asking", 4),),
    f"{_QKV}_14_i8_hopper": (_plan(_QKV, 14, 64, 42_704, "i8_asking", 2),),
    f"{_OUT}_16_i8_cluster": (_plan(_OUT, 16, 32, 12_336, "i8_asking", 4, 128),),
    f"{_GEGLU}_14_i8_cluster": (_plan(_GEGLU, 14, 64, 70_224, "i8_asking"),),
    f"{_DOWN}_16_i8_cluster": (_plan(_DOWN, 16, 32, 22_576, "i8_asking", 4),),
}
_OUT_WHOLE: _Plans = {
    f"{_OUT}_16_{into}_cluster": (_plan(_OUT, 16, 8, 4_112, f"{into}_whole"),)
    for into in ("bf16", "i8")
}
_QKV_WHOLE: _Plans = {f"{_QKV}_14_i8_hopper": (_plan(_QKV, 14, 16, 14_880, "i8_whole"),)}
_GEGLU_PARTS: _Plans = {
    f"{_GEGLU}_14_{into}_cluster": (_plan(_GEGLU, 14, 32, shared, f"{into}_parts", 1, 128),)
    for into, shared in (("bf16", 69_936), ("i8", 36_144))
}
_DOWN_BY_2: _Plans = {
    f"{_DOWN}_16_i8_cluster": (_plan(_DOWN, 16, 16, 34_336, "i8_by_2_asking", 2),)
}

#: Attention of a prefix to itself, of the image tower, and of many rows of the expert.
PAIRS: Mapping[str, str] = MappingProxyType(
    {
        f"attention_shared_kv_d256_{into}_sm90": f"attention_shared_kv_d256_{into}_pairs_sm90"
        for into in ("bf16", "fp8")
    }
)
TOWER: Mapping[str, str] = MappingProxyType(
    {
        f"attention_segments_d72_{into}": f"attention_segments_d72_{into}_halves_hopper"
        for into in ("bf16", "fp8")
    }
)
HALVES: Mapping[str, str] = MappingProxyType(
    {
        "attention_few_queries_d256_32_1024_bf16_cluster": (
            "attention_few_queries_d256_16_1024_bf16_cluster"
        )
    }
)
#: Plans by the name of a form; with "+1" or "+2" behind it (forms.py) products ask.
EXPERT: Mapping[str, _Plans] = MappingProxyType(
    {
        "expert": {**_FEW, **_MANY},
        "expert, out": {**_FEW, **_MANY, **_OUT_WHOLE},
        "expert, parts": {**_FEW, **_MANY, **_OUT_WHOLE, **_GEGLU_PARTS},
        "expert, down": {**_FEW, **_MANY, **_OUT_WHOLE, **_DOWN_BY_2},
        "expert, qkv": {**_FEW, **_MANY, **_OUT_WHOLE, **_QKV_WHOLE},
    }
)
