"""Puts the kernels of ops on the captured stream, or plans what they will need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..errors import CaptureError, ContractError
from ..kernels.launch import Size, Way
from ..kernels.quantised import E4M3
from .cublaslt import CublasLt
from .cuda_driver import CudaDriver
from .cuda_graph import Timing
from .cuda_library import KernelLibrary, Packed, launch_config
from .overlap import Overlap
from .product_site import Operands, Site

PRODUCT = "matmul"  # a library product, among the names of what was launched
_REPEATS, _ROUNDS = 6, 6  # calls in a timed graph, replays of it


class CudaLauncher:
    """What op launchers see of the CUDA device.

    A body runs twice: once planning (algorithms are chosen, workspace is sized, nothing is
    launched), once captured.

    Attributes:
        architecture: compute capability, 90 for 9.0.
        multiprocessors: of the GPU.
        memory: start and size of the device's arena.
        launched: names of what was launched since :meth:`begin`, in order.
    """

    def __init__(
        self,
        driver: CudaDriver,
        library: KernelLibrary,
        gemm: CublasLt,
        stream: Any,
        *,
        overlap: Overlap,
    ) -> None:
        self._driver = driver
        self._library = library
        self._gemm = gemm
        self._stream = stream
        self._overlap = overlap
        self._planning = True
        self._boundary = True
        self._expands = False  # the next kernel makes weights
        self._stage = ""
        # By whether they are for weights.
        self._workspaces: dict[bool, list[Tensor]] = {False: [], True: []}
        # Of scales, or their reciprocals, by address.
        self._constants: dict[tuple[int, bool], Tensor] = {}
        self._kept: list[Tensor] = []  # captured graphs hold the addresses of earlier ones
        self.architecture = driver.capability[0] * 10 + driver.capability[1]
        self.multiprocessors = driver.multiprocessors
        self.memory = (0, 0)
        self.launched: list[str] = []

    def begin(self, *, planning: bool) -> None:
        """Start planning, or start launching what was planned."""
        self._planning = planning
        self.launched = []

    def boundary(self, stage: str) -> None:
        """``stage`` begins: behind something other than a kernel, with which none can overlap."""
        self._boundary, self._stage = True, stage

    def launch(
        self,
        kernel: str,
        grid: Size,
        block: Size,
        args: Sequence[Any],
        *,
        shared_bytes: int = 0,
        cluster: Size | None = None,
        pdl: bool = True,
        carveout: int | None = None,
    ) -> None:
        """See :class:`flashrt_core.kernels.launch.Launcher`."""
        function = self._library.function(kernel, shared_bytes, carveout)
        front = "product" if self.launched and self.launched[-1] == PRODUCT else "kernel"
        allowed = not self._boundary and self._overlap.at(self._stage, front)
        early = pdl and allowed and self.architecture >= 90
        config = launch_config(
            self._driver,
            self._stream,
            grid,
            block,
            shared_bytes=shared_bytes,
            cluster=cluster,
            pdl=early,
        )
        packed = Packed(self._driver, args)
        if self._planning:
            return
        self._driver.call("cuLaunchKernelEx", config, function, packed.address, 0)
        self.launched.append(kernel)
        # Kernels read weights without waiting for those in front.
        self._boundary, self._expands = self._expands, False

    def matmul(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        gelu: bool = False,
        accumulate: bool = False,
        x_scale: Tensor | None = None,
        weight_scale: Tensor | None = None,
        out_scale: Tensor | None = None,
    ) -> None:
        """See :class:`flashrt_core.kernels.launch.Launcher`."""
        site = _site(x, weight, bias, out, gelu, accumulate)
        wanted = torch.bfloat16 if site.narrow else out.dtype
        if bias is not None and bias.dtype is not wanted:
            raise ContractError("bias of a product", expected=wanted, got=bias.dtype)
        scales = (
            self._constant(x_scale),
            self._constant(weight_scale),
            self._constant(out_scale, inverse=True),
        )
        if self._planning:
            self._gemm.prepare(site, self.memory)
            return
        addresses = map(_address, (x, weight, bias, out, *scales))
        self._gemm.run(site, Operands(*addresses))
        self.launched.append(PRODUCT)
        self._boundary = False

    def finishes(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        out: Tensor,
        *,
        gelu: bool = False,
        accumulate: bool = False,
    ) -> bool:
        """See :class:`flashrt_core.kernels.launch.Launcher`."""
        if bias is not None and bias.dtype is not torch.bfloat16:
            return False
        if out.dtype is E4M3 and (out.data_ptr() % 16 or out.stride(0) % 16):
            return False
        site = _site(x, weight, bias, out, gelu, accumulate)
        return self._gemm.offers(site, self.memory, prepare=self._planning)

    def _constant(self, scale: Tensor | None, *, inverse: bool = False) -> Tensor | None:
        """A scale, or its reciprocal, in memory of its own: scales are constants of a plan.

        Taken at set-up. The scales of a site's layers lie 4 bytes apart; this copy is aligned, so
        that no product depends on which addresses the library takes.
        """
        if scale is None:
            return None
        key = (scale.data_ptr(), inverse)
        if self._planning:
            value = float(scale)
            held = torch.tensor([1.0 / value if inverse else value], device=scale.device)
            self._kept.append(held)
            self._constants[key] = held
        return self._constants[key]

    def fastest(self, key: str, ways: Mapping[str, Way], x: Tensor, out: Tensor) -> None:
        """See :class:`flashrt_core.kernels.launch.Launcher`."""
        kernels = self._library.digest
        chosen = self._gemm.choice(key, kernels)
        if chosen is None or chosen not in ways:
            if not self._planning:
                raise CaptureError(f"fastest way of {key!r}", expected="a choice made at set-up")
            times = self._race(ways, _like(x), _like(out)) if len(ways) > 1 else {}
            chosen = min(times, key=times.__getitem__) if times else next(iter(ways))
            self._gemm.keep_choice(key, chosen, kernels, times)
        ways[chosen](x, out)

    def _race(self, ways: Mapping[str, Way], x: Tensor, out: Tensor) -> dict[str, float]:
        """Microseconds of every way."""
        for way in ways.values():
            way(x, out)  # products are prepared, workspace is there
        x.copy_(torch.randn(x.shape, device=x.device))  # is not drawn in every format
        torch.cuda.synchronize()
        launched, self._planning = self.launched, False
        timings: dict[str, Timing] = {}
        with ExitStack() as opened:
            for name, way in ways.items():
                calls = [partial(self._apart, way, x, out)] * _REPEATS
                timings[name] = Timing(self._driver, self._stream, name, calls)
                opened.callback(timings[name].close)
            self.launched, self._planning, self._boundary = launched, True, True
            for _ in range(_ROUNDS):
                for timing in timings.values():
                    timing.measure(1)
        return {name: round(timing.best, 2) for name, timing in timings.items()}

    def _apart(self, way: Way, x: Tensor, out: Tensor) -> None:
        """One call of a race. In a stage another op stands in front, so that a way must not gain by
        overlapping with its own repetition.
        """
        self._boundary = True
        way(x, out)

    def workspace(self, *shape: int, weights: bool = False) -> Tensor:
        """See :class:`flashrt_core.kernels.launch.Launcher`."""
        count, spaces = prod(shape), self._workspaces[weights]
        self._expands = weights and not self._planning
        held = spaces[-1].numel() if spaces else 0
        if count > held:
            if not self._planning:
                raise CaptureError("workspace", expected=f"at most {held} values", got=count)
            # Graphs captured earlier hold the address of the smaller one, so that one stays.
            spaces.append(torch.empty(count, dtype=torch.bfloat16, device="cuda"))
        return spaces[-1][:count].view(shape)

    def close(self) -> None:
        """Release the workspace."""
        for spaces in self._workspaces.values():
            spaces.clear()
        self._constants.clear()
        self._kept.clear()


def _site(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, gelu: bool, accumulate: bool
) -> Site:
    return Site(
        rows=x.shape[0],
        columns=weight.shape[0],
        depth=x.shape[1],
        x_stride=x.stride(0),
        out_stride=out.stride(0),
        bias=bias is not None,
        gelu=gelu,
        accumulate=accumulate,
        wide=out.dtype is torch.float32,
        narrow=x.dtype is E4M3,
        quantised=out.dtype is E4M3,
    )


def _like(tensor: Tensor) -> Tensor:
    """Other memory of the same layout, which decides what a product is."""
    return torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
