"""The kernels of a traced layer as lines of text."""

from __future__ import annotations

import re

from result_files import Result

_COLUMNS = 60  # characters of a drawn layer
_LIBRARY = re.compile(r"nvjet|cutlass|gemm|splitK", re.IGNORECASE)


def draw_layer(layer: Result) -> str:
    """A line a kernel: dots while it is resident and waits, `#` for its own time, its share."""
    kernels = layer["kernels"]
    ends = [kernel["start_us"] + kernel["duration_us"] for kernel in kernels]
    scale = _COLUMNS / max(ends)
    names = [_label(kernel["kernel"]) for kernel in kernels]
    width = max(map(len, names))
    lines = []
    for name, kernel, end in zip(names, kernels, ends, strict=True):
        start = round(kernel["start_us"] * scale)
        stop = max(round(end * scale), start + 1)
        own = min(max(round((end - kernel["share_us"]) * scale), start), stop - 1)
        bar = " " * start + "." * (own - start) + "#" * (stop - own)
        lines.append(f"{name:{width}}  {bar:{_COLUMNS}} {kernel['share_us']:6.1f} µs")
    return "\n".join(lines)


def _label(kernel: str) -> str:
    """What stands beside a bar; the library names its kernels after tiles."""
    return "product (cuBLASLt)" if _LIBRARY.search(kernel) else kernel
