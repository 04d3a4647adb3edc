"""Train π0.5 on recordings of the task, by flow matching, from nothing.

    python -m tabletop.train --data recordings --output policy --minutes 30

Writes a folder that the engine loads (LeRobot's layout), its log and the figure of the loss; and
beside it what a later call with ``--resume`` goes on from.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashrt_core.errors import DeviceError, FlashRTError, OptionError
from flashrt_core.policies.pi05.config import PRESETS, Pi05Config, make_config

from .demonstrations import Demonstrations, Encoder, load, relative, statistics
from .learning import Average, Samples, close_unused, flow_loss, held_out, network
from .model import Pi05
from .policy_folder import save_policy
from .robot import JOINTS, VIEWS
from .training_log import TrainingLog

ABSOLUTE = ("gripper",)  # its targets are not relative to where it is
_WARM_UP = 0.03  # of the run
_LAST_RATE = 0.02  # of the learning rate, at the end


def main(arguments: list[str] | None = None) -> None:
    """Train, and save now and then."""
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(words)
    torch.manual_seed(options.seed)
    if options.threads:
        torch.set_num_threads(options.threads)
    Training(options, _command(words)).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tabletop.train", description=__doc__)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of recordings, or a cache file (.npz)")
    add("--output", type=Path, required=True, help="folder of the policy")
    add("--preset", choices=sorted(PRESETS), default="small", help="sizes of the network")
    add("--minutes", type=float, default=30.0, help="how long to train")
    add("--steps", type=int, default=1 << 30, help="most steps")
    add("--batch", type=int, default=32, help="decisions a step")
    add("--samples", type=int, default=4, help="noisy samples of each decision a step")
    add("--rate", type=float, default=1e-3, help="highest learning rate")
    add("--decay", type=float, default=0.02, help="weight decay")
    add("--average", type=float, default=0.999, help="share that the averaged weights keep a step")
    add("--held-out", type=float, default=0.03, help="share of the episodes not trained on")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to train")
    add("--float32", action="store_true", help="no bfloat16 in products")
    add("--compile", action="store_true", help="compile the network (CUDA)")
    add("--workers", type=int, default=1, help="parts of a batch that are computed side by side")
    add("--threads", type=int, default=0, help="of each worker on a CPU; 0: torch's choice")
    add("--save-every", type=float, default=5.0, help="minutes between checkpoints")
    add("--no-figure", action="store_true", help="draw none, where matplotlib is not installed")
    add("--resume", action="store_true", help="go on from the state beside the output")
    add("--seed", type=int, default=0, help="of weights, noise and order")
    return parser


class Training:
    """A run: data, network, optimiser and their state."""

    def __init__(self, options: argparse.Namespace, command: str) -> None:
        self.options = options
        self.device = _device(options.device)
        self.config = make_config(options.preset, numerics="lerobot")
        self.cast: Callable[[], AbstractContextManager[Any]] = partial(
            torch.autocast, self.device.type, torch.bfloat16, enabled=not options.float32
        )
        self.generator = torch.Generator().manual_seed(options.seed)
        self.model = Pi05(self.config).to(self.device)
        close_unused(self.model, len(JOINTS))
        self.optimiser = _optimiser(self.model, options)
        self.average = Average(self.model, options.average)
        self.step, self.seconds = 0, 0.0
        self.stats: dict[str, Any] = {}
        self.log = TrainingLog(command)
        if options.resume:
            self._restore()
        self.train, self.test = self._data()
        self._weights = list(self.model.parameters())
        run = network(self.model)
        self._network = torch.compile(run) if options.compile else run
        # Threads with parts of the batch wait for each other once a step, those inside an operation
        # at each: on a machine that others use too, that is most of the time.
        count = options.workers
        self._map = map if count == 1 else ThreadPoolExecutor(count).map

    @property
    def state_file(self) -> Path:
        """What a run goes on from; beside the policy, which is smaller."""
        output: Path = self.options.output
        return output.with_name(f"{output.name}.state.pt")

    def run(self) -> None:
        """Steps until time or steps are over; the last checkpoint is that of the end."""
        order = torch.empty(0, dtype=torch.int64)
        losses: list[torch.Tensor] = []
        last = time.monotonic()
        saved = said = self.seconds
        while (share := self._share()) < 1.0:
            if len(order) < self.options.batch:
                order = torch.randperm(len(self.train), generator=self.generator)
            rows, order = order[: self.options.batch], order[self.options.batch :]
            rate = self.options.rate * _schedule(share)
            losses.append(self._step(rows, rate))
            now = time.monotonic()
            self.seconds, last = self.seconds + now - last, now
            if self.seconds - said >= 30.0:
                self._say(losses, rate)
                losses, said = [], self.seconds
            if self.seconds - saved >= 60.0 * self.options.save_every:
                self.save()
                saved = self.seconds
        if losses:
            self._say(losses, rate)
        self.save()

    def _step(self, rows: torch.Tensor, rate: float) -> torch.Tensor:
        """One step of the optimiser on the decisions ``rows``; the loss before it."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        parts = rows.chunk(self.options.workers)
        seeds = torch.randint(1 << 60, (len(parts),), generator=self.generator).tolist()
        found = list(self._map(self._gradients, parts, seeds))
        for parameter, *grads in zip(self._weights, *(grads for _, grads in found), strict=True):
            parameter.grad = sum(grads[1:], grads[0]) / len(parts)
        torch.nn.utils.clip_grad_norm_(self._weights, 1.0)
        self.optimiser.step()
        self.step += 1
        self.average.update(self.model, self.step)
        return torch.stack([loss for loss, _ in found]).mean()

    def _gradients(
        self, rows: torch.Tensor, seed: int
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Loss on the decisions ``rows`` and its gradients; runs in a thread of its own."""
        generator = torch.Generator().manual_seed(seed)
        batch, samples = self.train.batch(rows), self.options.samples
        with self.cast():
            loss = flow_loss(
                self._network, self.model, batch, len(JOINTS), samples, generator, augment=True
            )
        return loss.detach(), torch.autograd.grad(loss, self._weights)

    def save(self) -> None:
        """The policy of the averaged weights, its log, and the state of the run."""
        model = Pi05(self.config).to(self.device)
        model.load_state_dict(self.average.weights)
        self.log.held_out(self.step, self.seconds, held_out(model, self.test, self.cast))
        save_policy(
            self.options.output,
            self.config,
            self.average.weights,
            self.stats,
            views=tuple(VIEWS),
            joint_names=JOINTS,
            absolute=ABSOLUTE,
        )
        self.log.save(self.options.output, figure=not self.options.no_figure)
        state = {
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "stats": {name: torch.from_numpy(value) for name, value in self.stats.items()},
            "log": json.dumps(self.log.content),
        }
        fresh = self.state_file.with_suffix(".part")
        torch.save(state, fresh)
        fresh.replace(self.state_file)

    def _restore(self) -> None:
        if not self.state_file.exists():
            raise OptionError(
                "option '--resume'", expected=f"the state of a run, {self.state_file}", got="none"
            )
        state = torch.load(self.state_file, map_location=self.device)
        self.model.load_state_dict(state["model"])
        self.average.weights = state["average"]
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.stats = {name: value.cpu().numpy() for name, value in state["stats"].items()}
        self.log.go_on(json.loads(state["log"]))
        self.generator.manual_seed(self.options.seed + self.step)

    def _data(self) -> tuple[Samples, Samples]:
        data = load(self.options.data)
        joints = [not any(part in name for part in ABSOLUTE) for name in JOINTS]
        if not self.stats:
            self.stats = statistics(data.state, relative(data.chunk, data.state, joints))
        encoder = Encoder(self.config, self.stats, joints, tuple(VIEWS))
        parts = data.split(self.options.held_out, seed=0)
        self.log.begin(vars(self.options), _sizes(self.config, self.model), *map(_counts, parts))
        train, test = (
            Samples(part, encoder, self.config.action_dim, self.device) for part in parts
        )
        return train, test

    def _share(self) -> float:
        """Of the run that is over."""
        return max(self.step / self.options.steps, self.seconds / (60.0 * self.options.minutes))

    def _say(self, losses: list[torch.Tensor], rate: float) -> None:
        loss = float(torch.stack(losses).mean())
        self.log.point(self.step, self.seconds, loss, rate)
        speed = self.step * self.options.batch / max(self.seconds, 1e-9)
        print(
            f"{self.seconds / 60:6.1f} min  step {self.step}  loss {loss:.4f}  "
            f"{speed:.0f} decisions/s  {self.log.last_held_out}",
            flush=True,
        )


def _command(words: list[str]) -> str:
    """How the run was called, for the log; of paths from the root the last part."""
    short = (Path(word).name if word.startswith("/") else word for word in words)
    return shlex.join(["python", "-m", "tabletop.train", *short])


def _schedule(share: float) -> float:
    """Factor on the learning rate: up, then half a cosine down."""
    if share < _WARM_UP:
        return max(share / _WARM_UP, 1e-3)
    angle = math.pi * (share - _WARM_UP) / (1.0 - _WARM_UP)
    return _LAST_RATE + (1.0 - _LAST_RATE) * 0.5 * (1.0 + math.cos(angle))


def _optimiser(model: Pi05, options: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW; only matrices decay, and of them no table of rows."""
    matrices: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for name, parameter in model.named_parameters():
        table = "embedding.weight" in name or "lm_head" in name
        (others if parameter.dim() < 2 or table else matrices).append(parameter)
    groups = [
        {"params": matrices, "weight_decay": options.decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.98), fused=True)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceError("option '--device'", expected="a GPU that torch can use", got="none")
    return torch.device(name)


def _sizes(config: Pi05Config, model: Pi05) -> dict[str, Any]:
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"preset": config.preset, "parameters": count}


def _counts(data: Demonstrations) -> dict[str, int]:
    return {"decisions": len(data.state), "episodes": len(set(data.episode.tolist()))}


if __name__ == "__main__":
    try:
        main()
    except FlashRTError as error:
        sys.exit(str(error))
