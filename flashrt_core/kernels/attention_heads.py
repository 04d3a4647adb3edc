"""Which kernel attends for many heads and few rows (csrc/ops/attention_heads.cu)."""

from __future__ import annotations

#: Dynamic shared memory by the width of a head; the source asserts the same.
HEADS_SHARED = {48: 57_344, 64: 73_728, 128: 69_632}
#: Of the form for heads of 48 numbers and keys of which a warp has one tile.
SHORT_SHARED = 14_336


def heads_kernel(dim: int, into: str, keys: int) -> tuple[str, int]:
    """The entry for runs of so many keys, and its shared memory."""
    kernel = f"attention_heads_d{dim}_{into}"
    if keys <= 64 and kernel == "attention_heads_d48_bf16":
        return "attention_heads_d48_short_bf16", SHORT_SHARED
    return kernel, HEADS_SHARED[dim]
