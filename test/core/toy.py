"""A policy small enough to follow by hand, with every feature of the contract.

prompt (transform): embedding = 2 * tokens, offset = 100
context: kv = image sum + embedding
action: actions = kv + noise + offset
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from flashrt_core.contract import (
    BufferSpec,
    Contract,
    DType,
    InputSpec,
    OutputSpec,
    Rate,
    RegionSpec,
    Role,
    ShapeKey,
    StageSpec,
    Update,
)
from flashrt_core.devices import Device, open_device
from flashrt_core.engine import Engine, Plan
from flashrt_core.errors import InputError
from flashrt_core.fingerprint import fingerprint
from flashrt_core.kernels.op import Op
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session, noise_for

SMALL, LARGE = ShapeKey(1, 2, 2, 1), ShapeKey(1, 4, 2, 1)
VIEW = "eye"


def buffers() -> tuple[BufferSpec, ...]:
    return (
        BufferSpec("weights", (4,), DType.F32, Role.STATIC),
        BufferSpec("image", (2, 2, 3), DType.U8, Role.SWAP),
        BufferSpec("tokens", (4,), DType.I32, Role.SWAP),
        BufferSpec("noise", (2, 3), DType.F32, Role.SWAP),
        BufferSpec("actions", (2, 3), DType.F32, Role.SWAP),
        BufferSpec("embedding", (4,), DType.F32, Role.STATE),
        BufferSpec("offset", (1,), DType.I32, Role.STATE),
        BufferSpec("kv", (2, 5), DType.F32, Role.STATE),
        BufferSpec("x", (2, 3), DType.F32, Role.SCRATCH),
    )


def regions(key: ShapeKey) -> tuple[RegionSpec, ...]:
    tokens = key.prompt_tokens
    return (
        RegionSpec("kv", "kv", 0, 4 * tokens, rows=2, pitch=20),
        RegionSpec("embedding", "embedding", 0, 16),
        RegionSpec("offset", "offset", 0, 4),
    )


def contract() -> Contract:
    return Contract(
        policy="toy",
        shapes=(SMALL, LARGE),
        buffers=buffers(),
        inputs=(
            InputSpec("image", "image", (2, 2, 3), DType.U8, Update.SWAP, Rate.OBSERVATION),
            InputSpec(
                "tokens", "tokens", (4,), DType.I32, Update.STAGED, Rate.PROMPT, transform="prompt"
            ),
            InputSpec("noise", "noise", (2, 3), DType.F32, Update.SWAP, Rate.CHUNK),
        ),
        outputs=(OutputSpec("actions", "actions", (2, 3), DType.F32),),
        stages=(
            StageSpec("prompt", ("tokens",), ("embedding", "offset"), Rate.PROMPT, transform=True),
            StageSpec(
                "context", ("image", "embedding"), ("kv",), Rate.OBSERVATION, requires=("prompt",)
            ),
            StageSpec(
                "action",
                ("kv", "noise", "offset", "x"),
                ("actions", "x"),
                Rate.CHUNK,
                requires=("context",),
            ),
        ),
        regions={SMALL: regions(SMALL), LARGE: regions(LARGE)},
    )


def changed(spec: Contract, **fields: object) -> Contract:
    """The toy contract with fields replaced; runs every check again."""
    return replace(spec, **fields)  # type: ignore[arg-type]


def _embed(tokens: torch.Tensor, out: torch.Tensor, offset: torch.Tensor) -> None:
    out.copy_(2.0 * tokens)
    offset.fill_(100)


def _context(image: torch.Tensor, embedding: torch.Tensor, kv: torch.Tensor) -> None:
    kv.copy_((image.float().sum() + embedding).expand_as(kv))


def _action(
    kv: torch.Tensor, noise: torch.Tensor, offset: torch.Tensor, x: torch.Tensor, out: torch.Tensor
) -> None:
    x.copy_(noise + kv.sum())
    out.copy_(x + offset)


EMBED, CONTEXT, ACTION = Op("embed", _embed), Op("context", _context), Op("action", _action)


def body(stage: str, shape: ShapeKey):
    n = shape.prompt_tokens

    def run(lane, b):
        if stage == "prompt":
            lane.issue(EMBED, b["tokens"], b["embedding"], b["offset"])
        elif stage == "context":
            lane.issue(CONTEXT, b["image"], b["embedding"][:n], b["kv"][:, :n])
        else:
            lane.issue(ACTION, b["kv"][:, :n], b["noise"], b["offset"], b["x"], b["actions"])

    return run


@dataclass
class ToyProcessor:
    views: tuple[str, ...] = (VIEW,)
    state_dim: int = 3
    action_dim: int = 2
    relative: tuple[int, ...] = ()
    square = False
    identity: Mapping[str, str] = field(default_factory=lambda: {"state": "as it is"})

    def check_prompt(self, text: str) -> None:
        if not 0 < len(text) <= 4:
            raise InputError("prompt", expected="1 to 4 characters", got=repr(text))

    def checked_state(self, state: np.ndarray | None) -> np.ndarray | None:
        if state is None:
            return None
        if state.ndim != 1 or state.size > 3 or not np.isfinite(state).all():
            raise InputError("state", expected="up to 3 finite numbers", got=list(state.shape))
        return state.astype(np.float64)

    def encode(self, observation: Observation, prompt: str) -> dict[str, np.ndarray]:
        tokens = np.zeros(4, np.int32)
        tokens[: len(prompt)] = [ord(c) for c in prompt]
        return {"image": observation.images[VIEW], "tokens": tokens}

    def check_windows(self, values) -> None:
        pass

    def prompt_tokens(self, values) -> int:
        return int(np.count_nonzero(values["tokens"]))

    def encode_actions(self, actions: np.ndarray, state: np.ndarray | None) -> np.ndarray:
        raise NotImplementedError("the toy has no guidance")

    def decode(self, actions: np.ndarray, state: np.ndarray | None) -> np.ndarray:
        return actions[:, :2].copy()


def engine(
    *,
    weights: str = "w",
    max_sessions: int = 3,
    capsule_slots: int = 2,
    host_slots: int = 0,
    working_sets: int = 1,
    bodies=body,
    device: Device | None = None,
) -> Engine:
    spec, device = contract(), device or open_device("cpu")
    identity = fingerprint(
        spec,
        config={},
        precision="fp32",
        weights=weights,
        arch=device.arch,
        library=device.library,
        transforms=ToyProcessor().identity,
        execution=device.execution,
    )
    plan = Plan(spec, identity, ToyProcessor(), bodies, lambda b: b["weights"].fill_(1.0))
    return Engine(
        plan,
        device,
        Session,
        max_sessions=max_sessions,
        capsule_slots=capsule_slots,
        host_slots=host_slots,
        working_sets=working_sets,
    )


def see(value: int) -> Observation:
    return Observation({VIEW: np.full((2, 2, 3), value, np.uint8)}, stamp_ns=value)


def noise_of(seed: int, index: int) -> np.ndarray:
    """The noise of a decision."""
    return noise_for(seed, index, (2, 3))


def expected(value: int, prompt: str, noise: np.ndarray) -> np.ndarray:
    """The raw action by the formulas of the module docstring."""
    n = 2 if len(prompt) <= 2 else 4
    tokens = [2.0 * ord(c) for c in prompt] + [0.0] * (n - len(prompt))
    return noise + 2 * sum(12 * value + t for t in tokens) + 100
