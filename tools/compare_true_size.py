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

import argparse
import gc
import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test"), str(ROOT / "tools")]

import goldens_lerobot  # noqa: E402
import toolbox  # noqa: E402
from parity import case as parity  # noqa: E402

from flashrt_core.bench import machine  # noqa: E402
from flashrt_core.devices import REFERENCE_CUDA, Device, Segment, open_device  # noqa: E402
from flashrt_core.errors import DeviceError  # noqa: E402
from flashrt_core.policies.base import Policy  # noqa: E402
from flashrt_core.policies.pi05 import POLICY, Pi05Config  # noqa: E402
from flashrt_core.policies.pi05.reference import Reference  # noqa: E402
from flashrt_core.policies.windows import image_input  # noqa: E402
from flashrt_core.tensors import TensorSource, TensorSpec  # noqa: E402

LOOKUP = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
PACKAGES = toolbox.LEROBOT
WITHOUT_GPU = "--place cpu --narrow"
HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
Array = np.ndarray[Any, Any]


class Drawn:
    """Random weights drawn where they are used; a tensor source. Equal names give equal values.

    Deviations are those of the golden cases: a network that amplifies rounding noise would compare
    noise only.
    """

    digest = "drawn"

    def __init__(self, specs: dict[str, TensorSpec], place: str) -> None:
        self._specs = specs
        self._place = place

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._specs

    def get(self, name: str) -> Tensor:
        """A new float32 tensor."""
        shape = self._specs[name].shape
        mean, deviation = parity.spread(name, shape)
        generator = torch.Generator(self._place)
        generator.manual_seed(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "little"))
        values = torch.randn(shape, generator=generator, device=self._place)
        return values.mul_(deviation).add_(mean)


@dataclass(frozen=True)
class Decision:
    """Inputs of one decision: pixels by view, token ids, noise [H, 32]."""

    images: dict[str, Array]
    tokens: list[int]
    noise: Array


def base_config(options: argparse.Namespace) -> Pi05Config:
    """The sizes that are compared: released ones, or those of the golden cases."""
    sizes = parity.SIZES if options.narrow else {}
    shape = {"horizon": options.horizon, "prompt_buckets": (options.tokens,)}
    config: Pi05Config = POLICY.config("base", **{**sizes, **shape})
    return config


def draw_decisions(config: Pi05Config, options: argparse.Namespace) -> list[Decision]:
    """Random scenes: coarse blocks with grain, random words."""
    draw = np.random.default_rng(1)
    side, decisions = config.image_size, []
    for _ in range(options.decisions):
        images = {}
        for view in POLICY.slots[: options.views]:
            blocks = draw.integers(0, 200, (7, 7, 3)).repeat(side // 7, 0).repeat(side // 7, 1)
            images[view] = (blocks + draw.integers(0, 56, (side, side, 3))).astype(np.uint8)
        tokens = [2, *draw.integers(4, config.vocab, options.tokens - 1).tolist()]
        noise = draw.standard_normal((config.horizon, config.action_dim), dtype=np.float32)
        decisions.append(Decision(images, tokens, noise))
    return decisions


def run_lerobot(
    config: Pi05Config,
    source: TensorSource,
    decisions: list[Decision],
    arithmetic: str,
    place: str,
    watch: Callable[[Any], None] | None = None,
) -> Array:
    """[decisions, H, 32] of LeRobot's network; ``arithmetic`` "float32" or "bfloat16".

    ``watch`` gets the network before its first decision.
    """
    case = parity.Case(
        "true_size",
        views=len(decisions[0].images),
        tokens=len(decisions[0].tokens),
        padded=len(decisions[0].tokens),
        horizon=config.horizon,
        steps=config.steps,
        arithmetic=arithmetic,
    )
    with torch.device(place):
        model = goldens_lerobot.build(case, config).to(place).eval()
    for name, parameter in model.named_parameters():
        parameter.data.copy_(source.get(HEAD if name == LOOKUP else name))
    if watch is not None:
        watch(model)
    results = []
    with torch.inference_mode():
        for decision in decisions:
            images = [
                torch.from_numpy(pixels).to(place).permute(2, 0, 1)[None].float() / 255.0 * 2.0
                - 1.0
                for pixels in decision.images.values()
            ]
            tokens = torch.tensor([decision.tokens], device=place)
            actions = model.sample_actions(
                images,
                [torch.ones(1, dtype=torch.bool, device=place) for _ in images],
                tokens,
                torch.ones_like(tokens, dtype=torch.bool),
                noise=torch.from_numpy(decision.noise).to(place)[None],
            )
            results.append(actions[0].float().cpu().numpy())
    return np.stack(results)


def run_stages(
    config: Pi05Config,
    source: TensorSource,
    decisions: list[Decision],
    precision: str,
    device: Device,
    *watched: str,
) -> list[Array]:
    """[decisions, H, 32] of our stages on a device, then what they leave in each watched buffer."""
    return stage_results(
        POLICY,
        config,
        source,
        [each.images for each in decisions],
        [(each.tokens, {"noise": each.noise}) for each in decisions],
        precision,
        device,
        watched,
    )


def stage_results(
    policy: Policy,
    config: Any,
    source: TensorSource,
    images: list[dict[str, Array]],
    rest: list[tuple[list[int], dict[str, Array]]],
    precision: str,
    device: Device,
    watched: Iterable[str],
) -> list[Array]:
    """Actions of every decision, and what is left in each watched buffer.

    Args:
        policy, config, source, precision: of the plan.
        images: of each decision, by view.
        rest: of each decision, token ids and the values of other windows.
        device: closed behind.
        watched: names of buffers.
    """
    views = tuple(images[0])
    shapes = policy.shapes(config, len(views))
    contract = policy.contract(config, shapes, views, precision)
    buffers = device.allocate(contract.buffers)
    policy.pack(config, source, buffers)
    (shape,) = shapes

    def segment(stage: str) -> Segment:
        body = policy.body(config, contract, stage, shape)
        return stage, lambda lane: body(lane, buffers)

    program = device.capture([segment(stage.name) for stage in contract.stages])
    results: list[list[Array]] = []
    for shown, (ids, windows) in zip(images, rest, strict=True):
        tokens = np.zeros(config.max_prompt_tokens, np.int32)
        tokens[: len(ids)] = ids
        length = np.array([len(ids)], np.int32)
        values = {"prompt_tokens": tokens, "prompt_length": length, **windows}
        values |= {image_input(view): pixels for view, pixels in shown.items()}
        for name, value in values.items():
            device.write(buffers[name], value)
        device.replay(program)
        results.append([device.read(buffers[name]) for name in ("actions", *watched)])
    device.close()
    return [np.stack(each) for each in zip(*results, strict=True)]


def run_reference(
    config: Pi05Config, source: TensorSource, decisions: list[Decision], place: str
) -> Array:
    """[decisions, H, 32] of our float32 reference."""
    reference = Reference(config, source, place=place)
    return np.stack(
        [
            reference.decide(each.images, each.tokens, each.noise).actions.cpu().numpy()
            for each in decisions
        ]
    )


def compare(found: Array, expected: Array) -> dict[str, float]:
    """Least cosine of an action row, largest difference, root mean square difference."""
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    return {
        "min_cosine": float(((found * expected).sum(-1) / norms).min()),
        "max_abs": float(np.abs(found - expected).max()),
        "rms": float(np.sqrt(np.mean((found - expected) ** 2))),
    }


def require_place(place: str) -> None:
    """DeviceError where torch has no GPU to draw weights on."""
    if place == "cuda":
        with machine.gpu_only(f"compare at the golden sizes with {WITHOUT_GPU}"):
            open_device(REFERENCE_CUDA).close()


def devices(place: str) -> list[str]:
    """Devices that this machine can run the stages on."""
    found = []
    for name in ("cpu",) if place == "cpu" else (REFERENCE_CUDA, "cuda"):
        try:
            open_device(name).close()
        except DeviceError as error:
            print(f"without device {name}: {error}", file=sys.stderr)
        else:
            found.append(name)
    return found


def main() -> int:
    """Runs everything; 0 when every gate holds."""
    parser = toolbox.Parser(__doc__)
    parser.add_shape(decisions=3)
    parser.add_argument("--place", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--policy", choices=("pi05", "groot_n17"), default="pi05")
    parser.add_argument("--narrow", action="store_true", help="golden sizes instead of true ones")
    parser.add_output()
    options = parser.parse_args()
    own: Any = sys.modules[__name__]
    if options.policy != POLICY.name:
        with toolbox.needing(f"policy {options.policy}", "install what record_goldens.py names"):
            own = importlib.import_module("true_size_groot")
        # What the policy always runs at, where nothing else is asked for.
        options.horizon = own.HORIZON if options.horizon == 10 else options.horizon
    toolbox.require_packages(own.PACKAGES, "install what tools/record_goldens.py names")
    require_place(options.place)
    base = own.base_config(options)
    configs = {name: replace(base, numerics=profile) for name, profile in own.PROFILES.items()}
    source = own.Drawn(own.POLICY.tensors(base), options.place)
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
