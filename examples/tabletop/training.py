"""A training run: what it holds, its steps, its checkpoints, and what it goes on from."""

from __future__ import annotations

import argparse
import json
import math
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from flashrt_core.errors import DeviceError, NumericsError, OptionError
from flashrt_core.outputs import OutputError, whole_file
from flashrt_core.policies.pi05.config import Pi05Config, make_config

from .demonstrations import Demonstrations, Encoder, load, relative, statistics
from .learning import Average, Samples, close_unused, flow_loss, held_out, network
from .model import Pi05
from .policy_folder import save_policy
from .robot import JOINTS, VIEWS
from .training_log import TrainingLog

ABSOLUTE = ("gripper",)  # its targets are not relative to where it is
_WARM_UP = 0.03  # of the run
_LAST_RATE = 0.02  # of the learning rate, at the end
#: What a run is; the others of its options may change from call to call.
_SETTINGS = (
    *("preset", "batch", "samples", "rate", "decay", "average"),
    *("held_out", "seed", "float32"),
)
_LOOKS = 20  # steps of a GPU between looks at the loss, each of which waits for it
#: What reading a state of any content may raise.
_FOREIGN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    UnpicklingError,
    ValueError,
    struct.error,
)


def state_of(output: Path) -> Path:
    """What a run goes on from; beside the policy, which is smaller."""
    output = output.resolve()
    return output.with_name(f"{output.name}.state.pt")


class Training:
    """A run: data, network, optimiser and their state.

    Args:
        options: of the command, checked.
        command: how it was called, for the log.

    Raises:
        OptionError: a state or data that cannot be used.
        DeviceError: no GPU.
    """

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
        self._saved = ""
        self._unseen: list[torch.Tensor] = []
        self.stats: dict[str, Any] = {}
        self._recordings: dict[str, Any] = {}
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
    def saved(self) -> str:
        """What of this run is on the disk, for people."""
        return self._saved or "this run saved nothing"

    def run(self) -> None:
        """Steps until time or steps are over; the last checkpoint is that of the end.

        Raises:
            NumericsError: a loss that is not finite; no checkpoint is written then.
            OutputError: a checkpoint cannot be written.
        """
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
            self._look(losses[-1])
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

    def _look(self, loss: torch.Tensor) -> None:
        """NumericsError when a loss since the last look was not finite."""
        self._unseen.append(loss)
        if self.device.type == "cpu" or len(self._unseen) >= _LOOKS:
            self._check_finite("training", torch.stack(self._unseen))
            self._unseen = []

    def _check_finite(self, what: str, values: torch.Tensor) -> None:
        if not bool(torch.isfinite(values).all()):
            raise NumericsError(
                f"loss of the {what} at step {self.step}",
                expected="a finite number",
                got=values[~torch.isfinite(values)][0].item(),
                remedy=f"lower --rate; {self.saved}",
            )

    def save(self) -> None:
        """The policy of the averaged weights, its log, and the state of the run; errors as
        :meth:`run`.
        """
        if self._unseen:
            self._check_finite("training", torch.stack(self._unseen))
        model = Pi05(self.config).to(self.device)
        model.load_state_dict(self.average.weights)
        errors = held_out(model, self.test, self.cast)
        self._check_finite("held-out episodes", torch.tensor(list(errors.values())))
        self.log.held_out(self.step, self.seconds, errors)
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
            "settings": {name: getattr(self.options, name) for name in _SETTINGS},
            "recordings": self._recordings,
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "stats": {name: torch.from_numpy(value) for name, value in self.stats.items()},
            "log": json.dumps(self.log.content),
        }
        path = state_of(self.options.output)
        with whole_file("state", path) as part:
            try:
                torch.save(state, part)
            except RuntimeError as error:  # torch's name for a full disk
                raise OutputError(f"state '{path}' cannot be written", got=error) from error
        self._saved = (
            f"the policy of step {self.step} is in '{self.options.output}', "
            "--resume goes on from there"
        )

    def _restore(self) -> None:
        path = state_of(self.options.output)
        try:
            state = torch.load(path, map_location=self.device)
            log = json.loads(state["log"])
            settings = {name: state["settings"][name] for name in _SETTINGS}
            now = {name: getattr(self.options, name) for name in _SETTINGS}
            if settings == now:
                self._take(state, log)
        except _FOREIGN as error:
            raise OptionError(
                "option '--resume'",
                expected=f"the state of a run, '{path}'",
                got=f"{type(error).__name__}: {error}",
                remedy="start anew with --overwrite",
            ) from error
        for name, was in settings.items():
            if was != now[name]:
                option = f"--{name.replace('_', '-')}"
                give = f"give {option} {was}"
                if isinstance(was, bool):
                    give = f"give {option}" if was else f"leave {option} out"
                raise OptionError(
                    f"option '{option}'",
                    expected=f"{was!r}, as in the run of the state '{path}'",
                    got=f"{now[name]!r}",
                    remedy=f"{give}, or start anew with --overwrite",
                )
        if self._share() >= 1.0:
            raise OptionError(
                "options '--minutes' and '--steps'",
                expected="more than what is done already",
                got=f"{self.seconds / 60:.1f} minutes and {self.step} steps done",
                remedy="raise them; they count from the beginning of the first call",
            )

    def _take(self, state: dict[str, Any], log: dict[str, list[dict[str, Any]]]) -> None:
        self.model.load_state_dict(state["model"])
        Pi05(self.config).load_state_dict(state["average"])  # refuses what does not fit
        self.average.weights = state["average"]
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.seconds = int(state["step"]), float(state["seconds"])
        self._recordings = {name: state["recordings"][name] for name in ("digest", "decisions")}
        self.stats = {name: value.cpu().numpy() for name, value in state["stats"].items()}
        self.log.go_on(log)
        self.generator.manual_seed(self.options.seed + self.step)

    def _data(self) -> tuple[Samples, Samples]:
        data = load(self.options.data)
        self._check_same(data)
        joints = [not any(part in name for part in ABSOLUTE) for name in JOINTS]
        if not self.stats:
            self.stats = statistics(data.state, relative(data.chunk, data.state, joints))
        encoder = Encoder(self.config, self.stats, joints, tuple(VIEWS))
        parts = data.split(self.options.held_out, seed=0)
        if not all(len(part.state) for part in parts):
            raise OptionError(
                "option '--held-out'",
                expected="episodes left to train on and to hold out",
                got=f"{self.options.held_out:g} of {len(set(data.episode.tolist()))} episodes",
                remedy="give another share, or record more",
            )
        self.log.begin(vars(self.options), _sizes(self.config, self.model), *map(_counts, parts))
        train, test = (
            Samples(part, encoder, self.config.action_dim, self.device) for part in parts
        )
        return train, test

    def _check_same(self, data: Demonstrations) -> None:
        """OptionError where a run would go on with other recordings than it began with."""
        found = {"digest": data.digest, "decisions": len(data.state)}
        was = self._recordings or found
        if was != found:
            raise OptionError(
                "option '--data'",
                expected=f"the {was['decisions']} decisions that the state "
                f"'{state_of(self.options.output)}' was trained on",
                got=f"{found['decisions']} of other recordings, '{self.options.data}'",
                remedy="give those, or start anew with --overwrite",
            )
        self._recordings = found

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
        raise DeviceError(
            "option '--device'",
            expected="a GPU that torch can use",
            got="none",
            remedy="install a CUDA build of torch, or leave --device out to train on the CPU",
        )
    return torch.device(name)


def _sizes(config: Pi05Config, model: Pi05) -> dict[str, Any]:
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"preset": config.preset, "parameters": count}


def _counts(data: Demonstrations) -> dict[str, int]:
    return {"decisions": len(data.state), "episodes": len(set(data.episode.tolist()))}
