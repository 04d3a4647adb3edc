"""What the kernel sources declare, and a launcher that holds launches against it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashrt_core.kernels.launch import Float64, Size, TensorMap, Way, refuse_low_bit
from flashrt_core.kernels.op import Op

OPS = Path(__file__).resolve().parents[2] / "csrc" / "ops"
_ENTRY = re.compile(r'extern "C"\s+__global__\s+void(.*?)\{', re.DOTALL)
_MACRO = re.compile(r"#define (\w+)\(([\w, ]+)\)((?:.*\\\n)*.*\n)")


def _expand(source: str) -> str:
    """Replaces macros that declare entries by what they stand for."""
    for name, parameters, body in _MACRO.findall(source):
        if 'extern "C"' not in body:
            continue
        names = [parameter.strip() for parameter in parameters.split(",")]
        for use in re.findall(rf"^{name}\((.*)\)$", source, re.MULTILINE):
            text = body.replace("\\\n", "\n")
            for parameter, value in zip(names, use.split(","), strict=True):
                text = re.sub(rf"(##)?\b{parameter}\b(##)?", value.strip(), text)
                text = text.replace(f"##{parameter}##", value.strip())
            source += text.replace("##", "")
        source = re.sub(rf"#define {name}\(.*\n(?:.*\\\n)*", "", source, count=1)
    return source


def _kind(parameter: str) -> str:
    if "*" in parameter:
        return "pointer"
    if "CUtensorMap" in parameter:
        return "map"
    if "__grid_constant__" in parameter:
        return "record"  # which no launcher of an op passes
    return next(kind for kind in ("float", "double", "int") if re.search(rf"\b{kind}\b", parameter))


def _heads() -> Iterator[tuple[Path, str, str]]:
    """File, name and parameters of every entry under csrc/ops."""
    for path in sorted(OPS.glob("*.cu")):
        for head in _ENTRY.findall(_expand(path.read_text())):
            head = re.sub(r"__launch_bounds__\([^)]*\)|__cluster_dims__\([^)]*\)", "", head)
            name, parameters = re.search(r"(\w+)\s*\((.*)\)\s*$", head, re.DOTALL).groups()  # type: ignore[union-attr]
            yield path, name, parameters


def declared() -> dict[str, tuple[str, ...]]:
    """Entry name -> kinds of its parameters, of every kernel under csrc/ops."""
    return {
        name: tuple(_kind(part) for part in parameters.split(","))
        for _, name, parameters in _heads()
    }


@cache
def entries() -> dict[str, Path]:
    """Entry name -> its file."""
    return {name: path for path, name, _ in _heads()}


def kind_of(arg: Any) -> str:
    """The parameter kind that an argument of a launch is passed as."""
    if arg is None or isinstance(arg, Tensor):
        return "pointer"
    if isinstance(arg, TensorMap):
        return "map"
    if isinstance(arg, Float64):
        return "double"
    return {int: "int", float: "float"}[type(arg)]


@dataclass(frozen=True)
class Launch:
    """One recorded launch."""

    kernel: str
    grid: Size
    block: Size
    args: tuple[Any, ...]
    shared_bytes: int
    cluster: Size | None
    carveout: int | None = None


class CheckingLauncher:
    """Records launches; fails on an entry or a parameter list that the sources do not have."""

    def __init__(
        self,
        architecture: int = 90,
        multiprocessors: int = 132,
        *,
        finished: bool = True,
    ) -> None:
        self.architecture = architecture
        self.multiprocessors = multiprocessors
        self.launches: list[Launch] = []
        self.products = 0
        self.finished = finished  # products of E4M3, by the library
        self._declared = declared()

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
        assert kernel in self._declared, f"no entry {kernel}"
        kinds = tuple(kind_of(arg) for arg in args)
        assert kinds == self._declared[kernel], kernel
        threads = block if isinstance(block, int) else prod(block)
        assert 0 < threads <= 1024 and shared_bytes <= 232_448, kernel
        self.launches.append(
            Launch(kernel, grid, block, tuple(args), shared_bytes, cluster, carveout)
        )

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
        narrow = torch.float8_e4m3fn if x_scale is not None else torch.bfloat16
        assert x.dtype is weight.dtype is narrow
        if bias is not None:
            assert bias.dtype is (out.dtype if x_scale is None else torch.bfloat16)
        for scale in (x_scale, weight_scale, out_scale):
            assert scale is None or tuple(scale.shape) == (1,)
        assert weight_scale is None or x_scale is not None
        assert (out_scale is not None) == (out.dtype is torch.float8_e4m3fn)
        plain = bias is None and not (gelu or accumulate) and out.dtype is torch.bfloat16
        assert x_scale is None or plain or self.finished
        assert x.shape[1] == weight.shape[1]
        assert tuple(out.shape) == (x.shape[0], weight.shape[0])
        self.products += 1

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
        return self.finished and (bias is None or bias.dtype is torch.bfloat16)

    def fastest(self, key: str, ways: Mapping[str, Way], x: Tensor, out: Tensor) -> None:
        kept = list(self.launches), self.products
        for way in list(ways.values())[1:]:  # every way has to launch as declared
            way(x, out)
        self.launches, self.products = kept
        next(iter(ways.values()))(x, out)

    def workspace(self, *shape: int, weights: bool = False) -> Tensor:
        return torch.empty(shape, dtype=torch.bfloat16)


class Lane:
    """Hands ops to a launcher."""

    def __init__(self, launcher: CheckingLauncher) -> None:
        self._launcher = launcher

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        assert op.launch is not None, f"op {op.name} has no CUDA launcher"
        refuse_low_bit(op, (*args, *kwargs.values()))
        op.launch(self._launcher, *args, **kwargs)
