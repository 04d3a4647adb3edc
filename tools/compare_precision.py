"""Rounding at true size: our 16-bit stages and plain torch in bfloat16, beside float32; JSON.

On random weights, and on the same with outlier channels (``outliers:``), at the deviations of the
golden cases, which let noise neither grow nor vanish. Actions, and the keys and values of every
layer, are compared with our float32 reference. Gates (exit status 1 where one fails):

* least cosine of an action row, of our stages on ``cuda``: at least 0.9999;
* root mean square error of actions, keys and values: no larger than that of LeRobot's network in
  bfloat16 on the same weights and inputs, where LeRobot is installed. As it comes it rounds its
  rotary frequencies too (``lerobot``); the gate is what it does with exact ones (``lerobot_rope``).

The stages by torch's references on the GPU (``reference_cuda``: float32 inside an op, bfloat16
between ops) are shown too. Needs about 40 GB of GPU memory, and a minute for each kind of weights.

    python tools/compare_precision.py [--weights gaussian --weights outliers] [-o result.json]
    python tools/compare_precision.py --narrow --place cpu      # at the golden sizes
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test"), str(ROOT / "tools")]

import toolbox  # noqa: E402
import true_size  # noqa: E402
import true_size_pi05 as policy  # noqa: E402
from true_size import Array, Drawn  # noqa: E402
from true_size_pi05 import Decision  # noqa: E402

from flashrt_core.bench import machine  # noqa: E402
from flashrt_core.devices import open_device  # noqa: E402
from flashrt_core.policies.pi05 import POLICY, Pi05Config  # noqa: E402
from flashrt_core.policies.pi05.numerics import PROFILES  # noqa: E402
from flashrt_core.policies.pi05.reference import Reference  # noqa: E402
from flashrt_core.tensors import TensorSource  # noqa: E402
from flashrt_core.weights import OutlierWeights  # noqa: E402

WEIGHTS = ("gaussian", "outliers")
LEAST_COSINE = 0.9999
Outputs = dict[str, Array]  # actions [n, H, 32]; keys and values [n, L, S, d]


def reference(
    config: Pi05Config, source: TensorSource, decisions: list[Decision], place: str
) -> Outputs:
    """Ours in float32, rows of absent cameras and of padding left out."""
    network, results = Reference(config, source, place=place), []
    for each in decisions:
        found = network.decide(each.images, each.tokens, each.noise)
        kept = [found.keys[:, found.valid], found.values[:, found.valid]]
        results.append([tensor.float().cpu().numpy() for tensor in (found.actions, *kept)])
    actions, keys, values = (np.stack(part) for part in zip(*results, strict=True))
    return {"actions": actions, "keys": keys, "values": values}


def stages(
    config: Pi05Config, source: TensorSource, decisions: list[Decision], device: str
) -> Outputs:
    """Our stages in bfloat16."""
    opened = open_device(device)
    actions, cache = policy.run_stages(config, source, decisions, "bf16", opened, "kv")
    cache = cache[:, :, :, : cache.shape[3] - config.horizon]  # the chunk's own rows stand last
    return {"actions": actions, "keys": cache[:, :, 0], "values": cache[:, :, 1]}


def lerobot(
    config: Pi05Config,
    source: TensorSource,
    decisions: list[Decision],
    place: str,
    exact_rotary: bool,
) -> Outputs:
    """LeRobot's network in bfloat16, as it comes or with rotary frequencies in float32."""
    caches: list[list[Array]] = []

    def watch(model: Any) -> None:
        if exact_rotary:
            for module in model.modules():
                if isinstance(getattr(module, "inv_freq", None), torch.Tensor):
                    count = module.inv_freq.numel()
                    powers = torch.arange(count, dtype=torch.float64, device=place) / count
                    module.inv_freq = (config.rope_theta**-powers).float()
        network, forward = model.paligemma_with_expert, model.paligemma_with_expert.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = forward(*args, **kwargs)
            if kwargs.get("use_cache"):  # the prefix; a step makes no cache
                parts = [(layer.keys, layer.values) for layer in result[1].layers]
                caches.append(
                    [
                        torch.cat(part)[:, 0].float().cpu().numpy()
                        for part in zip(*parts, strict=True)
                    ]
                )
            return result

        network.forward = watched

    actions = policy.run_lerobot(config, source, decisions, "bfloat16", place, watch)
    keys, values = (np.stack(part) for part in zip(*caches, strict=True))
    return {"actions": actions, "keys": keys, "values": values}


def compare(found: Outputs, expected: Outputs) -> dict[str, dict[str, Any]]:
    """Errors of each output; of keys and values by layer too, relative to what was expected."""
    rows: dict[str, dict[str, Any]] = {}
    for name, value in expected.items():
        difference = found[name].astype(np.float64) - value
        rows[name] = true_size.compare(found[name], value) | {"relative": _ratio(difference, value)}
        if value.ndim == 4:
            rows[name]["relative_by_layer"] = [
                round(_ratio(difference[:, layer], value[:, layer]), 6)
                for layer in range(value.shape[1])
            ]
    return rows


def _ratio(difference: Array, value: Array) -> float:
    return float(np.sqrt(np.mean(difference**2) / np.mean(np.square(value, dtype=np.float64))))


def judge(kind: str, rows: dict[str, dict[str, Any]]) -> Iterator[tuple[str, float, str, bool]]:
    """The gates of one kind of weights: name, found, limit, passed."""
    for name, row in rows.items():
        if name not in ("cuda", "cpu"):
            continue
        cosine = row["actions"]["min_cosine"]
        yield f"{kind}, {name}: action cosine", cosine, f">= {LEAST_COSINE}", cosine >= LEAST_COSINE
        if plain := rows.get("lerobot_rope"):
            for output in ("actions", "keys", "values"):
                rms, limit = row[output]["rms"], plain[output]["rms"]
                told = f"<= {limit:.4g}, LeRobot's in bfloat16"
                yield f"{kind}, {name}: rms error of {output}", rms, told, rms <= limit


def measure(
    config: Pi05Config, source: TensorSource, decisions: list[Decision], place: str
) -> dict[str, dict[str, Any]]:
    """Everything that this machine can run, against the float32 reference."""
    expected = reference(config, source, decisions, place)
    ways: dict[str, Callable[[], Outputs]] = {
        device: lambda device=device: stages(config, source, decisions, device)  # type: ignore[misc]
        for device in true_size.devices(place)
    }
    if find_spec("lerobot"):
        ways["lerobot"] = lambda: lerobot(config, source, decisions, place, False)
        ways["lerobot_rope"] = lambda: lerobot(config, source, decisions, place, True)
    rows = {}
    for name, run in ways.items():
        rows[name] = compare(run(), expected)
        gc.collect()
        torch.cuda.empty_cache()
        actions = rows[name]["actions"]
        print(f"{name}: cosine {actions['min_cosine']:.7f}, rms {actions['rms']:.3g}", flush=True)
    return rows


def main() -> int:
    """Runs everything; 0 when every gate holds."""
    parser = toolbox.Parser(__doc__)
    parser.add_shape(decisions=2)
    parser.add_argument("--weights", action="append", choices=WEIGHTS, help="default: both")
    parser.add_argument("--place", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--narrow", action="store_true", help="golden sizes instead of true ones")
    parser.add_output()
    options = parser.parse_args()
    true_size.require_place(options.place)
    if options.place == "cuda":  # the gates are about it: without it none would fail
        toolbox.require_gpu(f"compare at the golden sizes with {true_size.WITHOUT_GPU}")
    config = replace(policy.base_config(options), numerics=PROFILES["lerobot"])
    specs = POLICY.tensors(config)
    decisions = policy.draw_decisions(config, options)
    found, gates = {}, []
    for kind in options.weights or WEIGHTS:
        print(f"{kind} weights", flush=True)
        drawn = Drawn(specs, options.place, policy.spread)
        source = drawn if kind == "gaussian" else OutlierWeights(0, drawn, specs)
        found[kind] = measure(config, source, decisions, options.place)
        gates += list(judge(kind, found[kind]))
    report: dict[str, Any] = {
        "shape": {name: getattr(options, name) for name in ("views", "tokens", "horizon")},
        "decisions": options.decisions,
        "sizes": "narrow" if options.narrow else "true",
        "place": options.place,
        "to_float32": found,
        "gates": [dict(zip(("gate", "found", "limit", "passed"), g, strict=True)) for g in gates],
        "gpu": machine.gpu_state(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "command": machine.command_line("python tools/compare_precision.py"),
    }
    for name, value, limit, passed in gates:
        print(f"{'passed' if passed else 'FAILED'}  {name}: {value:.7g} {limit}")
    toolbox.write_report(report, options.output)
    return 0 if all(gate[-1] for gate in gates) else 1


if __name__ == "__main__":
    toolbox.run(main, "compare_precision")
