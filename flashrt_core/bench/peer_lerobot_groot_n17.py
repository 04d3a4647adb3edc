"""LeRobot's GR00T N1.7 as a peer: its network, a call of it, and the strongest form of that.

Its strongest form: the diffusion transformer, the only part that the official recipe compiles,
through torch.compile, and the whole call recorded into one CUDA graph. The official code reads
values back from the GPU on its way (grids, masks, lengths), which no graph can hold. They depend on
the prompt and the sizes alone, so they are recorded once and handed out again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .case import Case

NEEDS = ("lerobot.policies.groot.groot_n1_7", "transformers", "diffusers", "tree")
EXTRA = "lerobot[groot]==0.6.1"
_IMAGE, _START, _END = 151655, 151652, 151653
_LEAD, _BEHIND = (151644, 872, 198), (151645, 198)
_TOKENS, _GRID = 64, 16  # of a view


def build(case: Case) -> Any:
    """The network on the GPU, with random weights; LeRobot's defaults are the released sizes."""
    from lerobot.policies.groot.groot_n1_7 import GR00TN17, GR00TN17Config

    config = GR00TN17Config(action_horizon=case.horizon, num_inference_timesteps=case.steps)
    with torch.device("cuda"):
        model = GR00TN17(config, load_backbone_weights=False)
    return model.to("cuda").to(torch.bfloat16).eval()


def _inputs(case: Case) -> dict[str, torch.Tensor]:
    """What its processor hands over: patches, token ids, a padded state, a slot."""
    generator = torch.Generator().manual_seed(0)
    image = [_START, *[_IMAGE] * _TOKENS, _END]
    words = case.prompt_tokens - len(_LEAD) - len(_BEHIND) - 2 * case.views
    drawn = torch.randint(1000, 100_000, (words,), generator=generator).tolist()
    ids = torch.tensor([[*_LEAD, *image * case.views, *drawn, *_BEHIND]])
    patches = (case.views * _GRID**2, 3 * 2 * _GRID**2)
    values = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == _IMAGE).long(),
        "pixel_values": torch.rand(patches, generator=generator) * 2 - 1,
        "image_grid_thw": torch.tensor([[1, _GRID, _GRID]] * case.views),
        "state": torch.rand((1, 1, 132), generator=generator) * 2 - 1,
        "embodiment_id": torch.full((1,), 10, dtype=torch.int32),
    }
    return {name: value.to("cuda") for name, value in values.items()}


def call(model: Any, case: Case) -> Callable[[], Any]:
    """A whole decision on inputs that lie on the GPU."""
    values = _inputs(case)
    return lambda: model.get_action(values)["action_pred"]


def compiled_graph(model: Any, case: Case) -> Callable[[], Any]:
    """The transformer compiled, the whole call in one graph."""
    values, transformer = _inputs(case), model.action_head.model
    plain = transformer.forward
    transformer.forward = torch.compile(plain, dynamic=False)
    model.get_action(values)  # compiles
    host = _HostValues()

    def run() -> Any:
        with host.active():
            backbone, action = model.prepare_input(values)
            seen = model.backbone(backbone)
        return model.action_head.get_action(seen, action, None)["action_pred"]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
        host.replays = True
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = run()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


class _HostValues(TorchDispatchMode):
    """Records what the host reads from the GPU or sends there, and hands it out again.

    Attributes:
        replays: hand out, in the order of the recording.
    """

    _READ = ("aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::repeat_interleave")

    def __init__(self) -> None:
        super().__init__()
        self.replays = False
        self._kept: list[Any] = []
        self._at = 0
        self._inside = False

    @contextmanager
    def active(self) -> Iterator[None]:
        """One pass; the functions that never come to a dispatcher are wrapped meanwhile."""
        import transformers.utils.import_utils as imported

        self._at = 0
        if not self.replays:
            self._kept = []
        make, listed = torch.tensor, torch.Tensor.tolist
        patches = (
            mock.patch.object(torch, "tensor", lambda *a, **k: self._value(lambda: make(*a, **k))),
            mock.patch.object(torch.Tensor, "tolist", lambda own: self._value(lambda: listed(own))),
            # The recorded pass has to take the branches of the plain one.
            mock.patch.object(imported, "is_cuda_stream_capturing", lambda: False),
        )
        with ExitStack() as stack:
            for patch in patches:
                stack.enter_context(patch)
            with self:
                yield

    def _value(self, make: Callable[[], Any]) -> Any:
        """The next value: made and kept, or the one kept before; whole where it makes others."""
        if self._inside:
            return make()
        if self.replays:
            self._at += 1
            return self._kept[self._at - 1]
        self._inside = True
        try:
            value = make()
        finally:
            self._inside = False
        self._kept.append(value)
        return value

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Hands on what stays on the GPU.

        In inference mode torch hands functions over whole (``Tensor.to``, ``bool()``), elsewhere as
        the ones that they are made of. Only these are looked at.
        """
        given = kwargs or {}
        aten = torch.ops.aten
        with self:
            parts = func.decompose(*args, **given)
        if parts is not NotImplemented:
            return parts

        def run() -> Any:
            return func(*args, **given)

        if func._schema.name in self._READ:
            return self._value(run)
        if func is aten.index.Tensor:
            return func(args[0], self._indices(args[0], args[1]))
        if func in (aten.index_put_.default, aten.index_put.default):
            return self._put(func, args, given)
        if func is aten._to_copy.default:
            wanted = torch.device(given.get("device") or args[0].device).type
            return self._value(run) if wanted != args[0].device.type else run()
        return run()

    def _put(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        target, indices, values, *rest = args
        lone = values.device.type == "cpu" and values.numel() == 1
        if lone and any(each is not None and each.dtype == torch.bool for each in indices):
            return func(*args, **given)  # a masked fill, which reads nothing back
        if values.device != target.device:
            there = values
            values = self._value(lambda: there.to(target.device))
        return func(target, self._indices(target, indices), values, *rest, **given)

    def _indices(self, target: torch.Tensor, indices: Any) -> list[Any]:
        """Masks as lists of places, whose length the host has to know."""
        found: list[Any] = []
        for each in indices:
            if each is not None and each.dtype in (torch.bool, torch.uint8):
                found += self._value(partial(_places, each, target.device))
            elif each is not None and each.device != target.device:
                found.append(self._value(partial(each.to, target.device)))
            else:
                found.append(each)
        return found


def _places(mask: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    return [place.to(device) for place in mask.nonzero(as_tuple=True)]
