"""LeRobot's policy against ours at true size, on one GPU, with random weights; prints JSON.

Gates (exit status 1 where one fails):

* our bfloat16 stages under the ``lerobot_bf16`` profile: cosine of every action row with LeRobot in
  bfloat16 at least 0.9999;
* our bfloat16 stages under the ``lerobot`` profile: distance from LeRobot in float32 no larger than
  that of LeRobot in bfloat16;
* our float32 reference: actions within 1e-4 of LeRobot in float32 (sums over up to 16384 products,
  in another order, 18 layers and 10 steps deep).

Stages run on ``reference_cuda`` (the torch references on the GPU) and, where the build has its
kernels, on ``cuda``. Needs torch 2.11, lerobot 0.6.1 and transformers 5.5.4 as
tools/record_goldens.py says, about 60 GB of GPU memory, and some minutes.

    python tools/compare_true_size.py [--views 2] [--tokens 48] [--horizon 10] [--decisions 3]
    python tools/compare_true_size.py --narrow --place cpu      # the same at the golden sizes
    python tools/compare_true_size.py --policy groot_n17 [--views 2] [--tokens 32]

The second policy also needs what tools/record_goldens.py names for it.
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import gc
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test"), str(ROOT / "tools")]

import toolbox  # noqa: E402
from true_size import Array, Drawn, compare, devices, require_place  # noqa: E402

from flashrt_core.bench import machine  # noqa: E402
from flashrt_core.devices import open_device  # noqa: E402


def main() -> int:
    """Runs everything; 0 when every gate holds."""
    parser = toolbox.Parser(__doc__)
    parser.add_shape(decisions=3)
    parser.add_argument("--place", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--policy", choices=("pi05", "groot_n17"), default="pi05")
    parser.add_argument("--narrow", action="store_true", help="golden sizes instead of true ones")
    parser.add_output()
    options = parser.parse_args()
    with toolbox.needing(f"policy {options.policy}", "install what record_goldens.py names"):
        own = importlib.import_module(f"true_size_{options.policy}")
    if options.horizon == 10:  # what a policy always runs at, where nothing else is asked for
        options.horizon = getattr(own, "HORIZON", options.horizon)
    toolbox.require_packages(own.PACKAGES, "install what tools/record_goldens.py names")
    require_place(options.place)
    torch.backends.cudnn.allow_tf32 = False  # LeRobot's convolutions in float32, as they say
    base = own.base_config(options)
    configs = {name: replace(base, numerics=profile) for name, profile in own.PROFILES.items()}
    source = Drawn(own.POLICY.tensors(base), options.place, own.spread)
    decisions = own.draw_decisions(base, options)

    results: dict[str, Array] = {}
    for arithmetic in ("float32", "bfloat16"):
        name = f"lerobot {arithmetic}"
        results[name] = own.run_lerobot(base, source, decisions, arithmetic, options.place)
        gc.collect()
        torch.cuda.empty_cache()
        print(f"{name}: actions {results[name].min():.3f}..{results[name].max():.3f}", flush=True)
    for profile in ("lerobot", "lerobot_bf16"):
        name = f"reference {profile}"
        results[name] = own.run_reference(configs[profile], source, decisions, options.place)
    for device in devices(options.place):
        for profile in ("lerobot", "lerobot_bf16"):
            name = f"stages {device} bf16 {profile}"
            (results[name],) = own.run_stages(
                configs[profile], source, decisions, "bf16", open_device(device)
            )
            print(name, flush=True)
    report, passed = judge(results)
    report |= {
        "gpu": machine.gpu_state(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "command": machine.command_line("python tools/compare_true_size.py"),
    }
    report["policy"] = options.policy
    report["shape"] = {name: getattr(options, name) for name in ("views", "tokens", "horizon")}
    print(json.dumps(report, indent=1))
    toolbox.write_report(report, options.output)
    return 0 if passed else 1


def judge(results: dict[str, Array]) -> tuple[dict[str, Any], bool]:
    """Every result against both of LeRobot's, and the gates."""
    exact, rounded = results["lerobot float32"], results["lerobot bfloat16"]
    table = {
        name: {"to lerobot float32": compare(x, exact), "to lerobot bfloat16": compare(x, rounded)}
        for name, x in results.items()
    }
    own = table["lerobot bfloat16"]["to lerobot float32"]["rms"]
    gates = []
    for name, row in table.items():
        if name.startswith("stages") and name.endswith("lerobot_bf16"):
            cosine = row["to lerobot bfloat16"]["min_cosine"]
            gates.append(
                (f"{name}: cosine with LeRobot bf16", cosine, ">= 0.9999", cosine >= 0.9999)
            )
        elif name.startswith("stages"):
            rms = row["to lerobot float32"]["rms"]
            limit = f"<= {own:.3g}, LeRobot bf16's own"
            gates.append((f"{name}: distance to LeRobot fp32", rms, limit, rms <= own))
    worst = table["reference lerobot"]["to lerobot float32"]["max_abs"]
    gates.append(("reference: largest difference to LeRobot fp32", worst, "<= 1e-4", worst <= 1e-4))
    rows = [dict(zip(("gate", "found", "limit", "passed"), gate, strict=True)) for gate in gates]
    return {"comparisons": table, "gates": rows}, all(gate[-1] for gate in gates)


if __name__ == "__main__":
    toolbox.run(main, "compare_true_size")
