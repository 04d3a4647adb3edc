"""What one scale for a weight costs beside a scale for each of its rows; JSON.

Products of E4M3 operands as the ``fp8`` plan of π0.5 has them, emulated on the CPU at the true
widths of one layer, with random weights and the same with outlier channels. Errors are relative to
the product of the numbers before they were quantised (root mean square): of the whole, and of the
worst output channel, which is where a small row of a weight would show.

    python tools/compare_scales.py [--rows 64] [-o result.json]
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import toolbox  # noqa: E402

from flashrt_core.gemm import linear_ref  # noqa: E402
from flashrt_core.kernels.quantised import E4M3_MAX, quantise, quantise_rows, quantise_whole  # noqa: E402
from flashrt_core.policies.pi05 import POLICY  # noqa: E402
from flashrt_core.scales import power_of_two  # noqa: E402
from flashrt_core.tensors import TensorSource  # noqa: E402
from flashrt_core.weights import OutlierWeights, RandomWeights  # noqa: E402

#: Where a checkpoint has the weights of a site.
_VISION, _TRUNK = "vision_model.encoder.layers.0.", "paligemma.model.language_model.layers.0."
WEIGHTS = {
    "vision.out": f"{_VISION}self_attn.out_proj",
    "vision.fc1": f"{_VISION}mlp.fc1",
    "vision.fc2": f"{_VISION}mlp.fc2",
    "prefix.out": f"{_TRUNK}self_attn.o_proj",
    "prefix.down": f"{_TRUNK}mlp.down_proj",
}
SIZES = {"vision_depth": 1, "trunk_depth": 2, "expert_depth": 2, "vocab": 1024}


def errors(weight: torch.Tensor, rows: int) -> dict[str, dict[str, float]]:
    """Way to scale -> error of the whole product and of its worst channel; normal ``rows``."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, weight.shape[1], generator=generator).bfloat16()
    x_scale = torch.tensor([power_of_two(float(x.abs().max()) / E4M3_MAX)])
    exact, found = x.float() @ weight.t(), {}
    for way, make in (("row", quantise_rows), ("tensor", quantise_whole)):
        stored, scale = make(weight)
        out = torch.empty(rows, len(weight))
        narrow = quantise(x, x_scale)
        linear_ref(narrow, stored, None, out, x_scale=x_scale, weight_scale=scale)
        wrong = out - exact
        channels = wrong.norm(dim=0) / exact.norm(dim=0)
        found[way] = {"whole": float(wrong.norm() / exact.norm()), "worst": float(channels.max())}
    return found


def tell(site: str, name: str, found: dict[str, dict[str, float]]) -> None:
    """A line of a Markdown table."""
    cells = (f"{found[way][of] * 100:.2f} %" for of in ("whole", "worst") for way in found)
    print(f"| `{site}` | `{name}` | {' | '.join(cells)} |")


def main() -> None:
    """Prints a table, and writes what is in it."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("--rows", type=toolbox.whole(1, 4096), default=64, help="of inputs; 64")
    parser.add_output()
    given = parser.parse_args()
    specs = POLICY.tensors(POLICY.config("base", **SIZES))
    plain = RandomWeights(0, specs)
    sources: dict[str, TensorSource] = {
        "random:0": plain,
        "outliers:0": OutlierWeights(0, plain, specs),
    }
    report: dict[str, Any] = {"rows": given.rows, "sites": {}}
    print("| site | weights | a scale a row | a tensor | worst channel: a row | a tensor |")
    print("|---|---|---|---|---|---|")
    for site, part in WEIGHTS.items():
        (tensor,) = (name for name in specs if name.endswith(f"{part}.weight"))
        for name, source in sources.items():
            found = errors(source.get(tensor), given.rows)
            report["sites"].setdefault(site, {})[name] = found
            tell(site, name, found)
    toolbox.write_report(report, given.output)


if __name__ == "__main__":
    toolbox.run(main, "compare_scales")
