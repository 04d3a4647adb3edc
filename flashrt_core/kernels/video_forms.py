"""Forms of the kernels of LingBot-VA that are not products: what may stand in whose place."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from .forms import Forms

#: Entries by those that they stand for. Some take further arguments, which their launchers know.
_KERNELS: Mapping[str, Mapping[str, str]] = {
    # Few rows over the history, whose older keys are there before the kernels in front have ended.
    "history kept": {
        "attention_heads_d128_biased_bf16_cluster": "attention_history_d128_bf16_kept_cluster"
    },
    "history kept rows": {
        "attention_heads_d128_biased_bf16_cluster": "attention_history_d128_bf16_kept_rows_cluster"
    },
    "history kept alone": {
        "attention_heads_d128_biased_bf16_cluster": "attention_history_d128_bf16_kept_alone_cluster"
    },
    "history rows": {
        "attention_heads_d128_biased_bf16_cluster": "attention_history_d128_bf16_rows_cluster"
    },
    # Many rows over it.
    "video ahead": {
        "attention_biased_d128_shared_bf16_sm90": "attention_biased_d128_shared_ahead_bf16_sm90"
    },
    "video split": {
        "attention_biased_d128_shared_bf16_sm90": "attention_biased_d128_split_bf16_sm90"
    },
    "video split ahead": {
        "attention_biased_d128_shared_bf16_sm90": "attention_biased_d128_split_ahead_bf16_sm90"
    },
    # The prompt.
    "prompt kept": {
        "attention_heads_d128_biased_bf16": "attention_heads_d128_biased_kept_bf16",
        "attention_biased_d128_bf16_sm90": "attention_biased_d128_kept_bf16_sm90",
    },
    "norms kept": {"qkv_row_norm_rope_kv_bf16": "qkv_row_norm_rope_kv_kept_bf16"},
    "norms joined": {"gated_residual_biased_bf16": "gated_residual_norm_bf16"},
    "conv wide": {"conv_frames_bf16": "conv_frames_bf16_sm90"},
}
#: By name.
VIDEO_FORMS: Mapping[str, Forms] = MappingProxyType(
    {name: Forms(name, kernels=kernels) for name, kernels in _KERNELS.items()}
)
