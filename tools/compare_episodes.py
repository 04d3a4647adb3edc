"""LeRobot's LingBot-VA against our stages over the first decisions of an episode; prints JSON.

Gate (exit status 1 where it fails): cosine of every action row of our bfloat16 stages with LeRobot
in bfloat16 at least 0.9995, at true size, random weights, in four decisions that each build on what
LeRobot did in the one before.

Stages run on ``reference_cuda`` (the torch references on the GPU) and, where the build has kernels
of every op, on ``cuda``. Needs what tools/record_lingbot_goldens.py says, about 40 GB of GPU memory
and some minutes.

    python tools/compare_episodes.py [--chunks 4] [--device reference_cuda]
    python tools/compare_episodes.py --device cpu --narrow      # the same at the golden sizes
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test"), str(ROOT / "tools")]

import record_lingbot_goldens as goldens  # noqa: E402
import toolbox  # noqa: E402
from parity import lingbot as parity  # noqa: E402
from true_size import Drawn, calm  # noqa: E402

from flashrt_core.bench import machine  # noqa: E402
from flashrt_core.devices import REFERENCE_CUDA, open_device  # noqa: E402
from flashrt_core.fidelity.qualification import row_cosines  # noqa: E402
from flashrt_core.policies.lingbot_va import POLICY  # noqa: E402
from flashrt_core.policies.lingbot_va.layout import to_tokens  # noqa: E402
from flashrt_core.policies.lingbot_va.pictures import resized  # noqa: E402
from flashrt_core.policies.lingbot_va.preprocess import squares  # noqa: E402
from flashrt_core.policies.windows import image_input  # noqa: E402
from flashrt_core.tensors import TensorSource  # noqa: E402

LEAST = 0.9995
PACKAGES = (*toolbox.LEROBOT, "diffusers")
Array = np.ndarray[Any, Any]


def run_stages(
    case: parity.Case, source: TensorSource, kind: str, precision: str, done: list[Array]
) -> list[Array]:
    """Raw actions of every decision, on a device; ``done``: what was executed of each."""
    config, views = case.config, POLICY.slots[: case.views]
    shapes = POLICY.shapes(config, case.views)[:1]
    contract = POLICY.contract(config, shapes, views, precision)
    device = open_device(kind)
    try:
        buffers = device.allocate(contract.buffers)
        POLICY.pack(config, source, buffers)
        write_prompt(case, device, buffers)
        found = []
        for turn in range(case.chunks):
            write(case, device, buffers, turn, done)
            for stage in (
                ("prompt", "commit", "video", "action")
                if turn == 0
                else (
                    "commit",
                    "video",
                    "action",
                )
            ):
                variant = min(turn, contract.stage(stage).variants - 1)
                body = POLICY.body(config, contract, stage, shapes[0], variant)
                segment = (stage, lambda lane, body=body: body(lane, buffers))
                device.replay(device.capture([segment]))
            device.synchronize()
            found.append(device.read(buffers["actions"]))
        return found
    finally:
        device.close()


def write_prompt(case: parity.Case, device: Any, buffers: Any) -> None:
    """Rows of both texts."""
    rows = np.zeros(tuple(buffers["prompt_rows"].shape), np.float32)
    texts = parity.prompts(case)
    for index, text in enumerate(texts):
        rows[index, 1 : 1 + len(text)] = text
    device.write(buffers["prompt_rows"], rows)
    lengths = np.array([len(text) for text in texts], np.int32)
    device.write(buffers["prompt_lengths"], lengths)


def write(case: parity.Case, device: Any, buffers: Any, turn: int, done: list[Array]) -> None:
    """Pictures, noise and what was executed before a decision."""
    config = case.config
    for view, video in enumerate(parity.frames(case, turn)):
        window = buffers[image_input(POLICY.slots[view])]
        values = np.zeros(tuple(window.shape), np.float32)
        for index, picture in enumerate(video):
            values[index] = squares(resized(picture, *config.picture(view)))
        device.write(window, values)
    latents, actions = parity.noise(case, turn)
    device.write(buffers["noise.video"], to_tokens(torch.from_numpy(latents)).numpy())
    device.write(buffers["noise"], np.ascontiguousarray(actions.reshape(len(actions), -1).T))
    if turn:
        device.write(buffers["executed"], np.ascontiguousarray(done[turn - 1]))


def main() -> int:
    """Runs both; 0 when the gate holds."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("--chunks", type=toolbox.whole(1, 64), default=4, help="decisions; 4")
    parser.add_argument("--device", choices=("cpu", "cuda", REFERENCE_CUDA), default=REFERENCE_CUDA)
    parser.add_argument("--precision", default="bf16", help="plan of the stages; bf16")
    parser.add_argument("--narrow", action="store_true", help="golden sizes instead of true ones")
    parser.add_output()
    options = parser.parse_args()
    toolbox.require_packages(PACKAGES, "install what tools/record_lingbot_goldens.py names")
    place = "cpu" if options.device == "cpu" else "cuda"
    case = parity.Case("true", 2, options.chunks, preset="tiny" if options.narrow else "base")
    source = Drawn(POLICY.tensors(case.config), place, calm)
    policy = goldens.build(case, source, "bfloat16", place)
    official = goldens.episode(case, policy)
    del policy
    gc.collect()
    actions = [official[f"true.{turn}.actions"] for turn in range(case.chunks)]
    done = [parity.executed(case, turn, made) for turn, made in enumerate(actions)]
    found = run_stages(case, source, options.device, options.precision, done)
    rows, used = case.config.frame_rows, list(case.config.channels)
    cosines = [
        row_cosines(*(each[rows if turn == 0 else 0 :, used].astype(np.float64) for each in pair))
        for turn, pair in enumerate(zip(found, actions, strict=True))
    ]
    worst = min(float(each.min()) for each in cosines)
    report = {
        "policy": "lingbot_va",
        "device": options.device,
        "precision": options.precision,
        "chunks": case.chunks,
        "cosines": [{"min": float(c.min()), "mean": float(c.mean())} for c in cosines],
        "gate": {"min_cosine": LEAST, "found": worst, "passed": worst >= LEAST},
        "gpu": machine.gpu_state(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "command": machine.command_line("python tools/compare_episodes.py"),
    }
    print(json.dumps(report, indent=1))
    toolbox.write_report(report, options.output)
    return 0 if worst >= LEAST else 1


if __name__ == "__main__":
    toolbox.run(main, "compare_episodes")
