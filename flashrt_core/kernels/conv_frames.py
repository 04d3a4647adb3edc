"""Convolution over frames: causal in time, with what came before in front; channels last."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .check import ArgCheck
from .launch import Launcher, blocks, require_bf16_rows, require_packed
from .low_bit import no_kernel
from .op import Lane, Op


def conv_frames_ref(
    x: Tensor,
    past: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    *,
    strides: tuple[int, int],
    residual: Tensor | None = None,
) -> None:
    """float32 accumulation and epilogue, one rounding into ``out``."""
    frames = x.float().permute(0, 4, 1, 2, 3)  # [V, C, T, H, W]
    if past is not None:
        frames = _joined(past.float().permute(0, 4, 1, 2, 3), frames)
    before, behind = _edges(weight.shape[2], strides[1])
    frames = F.pad(frames, (before, behind, before, behind))
    kernel = weight.float().permute(0, 4, 1, 2, 3)
    made = F.conv3d(frames, kernel, bias.float(), stride=(strides[0], strides[1], strides[1]))
    made = made.permute(0, 2, 3, 4, 1)
    out.copy_(made if residual is None else made + residual)


def _joined(past: Tensor, frames: Tensor) -> Tensor:
    joined = frames.new_empty(*frames.shape[:2], past.shape[2] + frames.shape[2], *frames.shape[3:])
    joined[:, :, : past.shape[2]], joined[:, :, past.shape[2] :] = past, frames
    return joined


def _edges(size: int, stride: int) -> tuple[int, int]:
    """Cells of zeros in front of and behind a row or column."""
    return (0, size - stride) if stride > 1 else (size // 2, size // 2)


def conv_frames_operands(
    x: Tensor, past: Tensor | None, weight: Tensor, bias: Tensor, out: Tensor, **_options: object
) -> tuple[Tensor, Tensor]:
    """Weight and input, as :class:`Op` has them."""
    return weight, x


#: Cells and channels of a block, K numbers of a step, and its shared memory; as the source has it.
_CELLS, _CHANNELS, _STEP, _SHARED = 128, 160, 32, 92_160
#: Of the kernel by warpgroups: K numbers of a step, and its shared memory.
_WIDE_STEP, _WIDE_SHARED = 64, 110_592
#: Fewest steps of a split of K.
_LEAST_STEPS = 16


def conv_frames_launch(
    launcher: Launcher,
    x: Tensor,
    past: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    *,
    strides: tuple[int, int],
    residual: Tensor | None = None,
) -> None:
    """One product whose rows are gathered on the way; where its blocks would leave most of the chip
    idle, K is split between several and a kernel behind adds them up.
    """
    formats = {torch.float32: "f32", torch.bfloat16: "bf16"}
    require_bf16_rows("conv_frames", x=x, past=past, weight=weight, residual=residual)
    require_packed("conv_frames", x=x, past=past, weight=weight, out=out, residual=residual)
    _, frames, height, width, channels = x.shape
    _, kt, k, _, _ = weight.shape
    videos, made, out_height, out_width, out_channels = out.shape
    if channels % 4 or out_channels % 8 or bias.dtype is not torch.float32:
        raise no_kernel(
            "conv_frames",
            expected="multiples of 4 channels in and 8 out, and a float32 bias",
            got=f"{channels}, {out_channels} and {bias.dtype}",
        )
    cells, depth = videos * made * out_height * out_width, kt * k * k * channels
    into = formats[out.dtype]
    kernel = f"conv_frames_{into}" if channels % 8 == 0 else f"conv_frames_narrow_{into}"
    wide = _by_warpgroups(launcher, channels, into)
    grid = (blocks(cells, _CELLS), blocks(out_channels, _CHANNELS))
    step, shared = (_WIDE_STEP, _WIDE_SHARED) if wide else (_STEP, _SHARED)
    splits = _splits(launcher, grid[0] * grid[1], blocks(depth, step), _LEAST_STEPS * _STEP // step)
    count = cells * out_channels
    sums = None
    if splits > 1:
        sums = launcher.workspace(2 * splits * count).view(torch.float32)
    before = _edges(k, strides[1])[0]
    sizes = (frames, 0 if past is None else past.shape[1], height, width, channels)
    target = (made, out_height, out_width, out_channels, kt, k, *strides, before, cells, depth)
    args = (x, past, weight, bias, residual, out, sums, *sizes, *target)
    kernel = f"{kernel}_sm90" if wide else kernel
    launcher.launch(kernel, (*grid, splits), 256, args, shared_bytes=shared)
    if sums is not None:
        ends = (sums, bias, residual, out, count, out_channels, splits)
        launcher.launch(f"conv_sums_{into}", blocks(count, 512), 256, ends)


def _by_warpgroups(launcher: Launcher, channels: int, into: str) -> bool:
    """Whether Hopper's products are built for such pictures."""
    return launcher.architecture == 90 and channels % 8 == 0 and into == "bf16"


def _splits(launcher: Launcher, tiles: int, steps: int, least: int) -> int:
    """How many blocks share the K of a tile; none of them has nothing to do."""
    wanted = max(1, min(launcher.multiprocessors // tiles, steps // least))
    return blocks(steps, blocks(steps, wanted))


CONV_FRAMES = Op("conv_frames", conv_frames_ref, conv_frames_launch, conv_frames_operands)


def conv_frames(
    lane: Lane,
    x: Tensor,
    past: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    out: Tensor,
    *,
    strides: tuple[int, int] = (1, 1),
    residual: Tensor | None = None,
) -> None:
    """out = past|x * weight + b (+ residual), a correlation over [frames, rows, columns].

    Frames are taken as they are: with P past ones and a kernel of kt, P + T - kt + 1 come out, of
    which every stride-th is kept. Rows and columns are framed by zeros: by k // 2 on each side, or
    with a stride s > 1 by k - s at their ends.

    Args:
        lane: where the op goes.
        x: [V, T, H, W, C] float, V videos apart from each other.
        past: [V, P, H, W, C] float, the frames in front; None for none.
        weight: [O, kt, k, k, C] float, contiguous.
        bias: [O] float.
        out: [V, T', H', W', O] float, apart from ``x`` and ``past``; may be ``residual``.
        strides: over frames, and over rows and columns.
        residual: as ``out``, added; None: nothing is.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("conv_frames")
    check.tensor("x", x, ("V", "T", "H", "W", "C"))
    if past is not None:
        check.tensor("past", past, ("V", "P", "H", "W", "C"))
        check.apart("out", out, "past", past)
    check.tensor("weight", weight, ("O", "kt", "k", "k", "C"))
    check.tensor("bias", bias, ("O",))
    over_time, over_space = strides
    kt, k, sizes = check.sizes["kt"], check.sizes["k"], check.sizes
    frames = (sizes["T"] + sizes.get("P", 0) - kt) // over_time + 1
    check.require(frames > 0, "frames of 'x' and 'past'", expected=f"{kt} or more", got=frames)
    edges = sum(_edges(k, over_space))
    grid = [(sizes[side] + edges - k) // over_space + 1 for side in "HW"]
    check.tensor("out", out, (sizes["V"], frames, *grid, sizes["O"]))
    check.apart("out", out, "x", x)
    if residual is not None:
        check.tensor("residual", residual, tuple(out.shape))
    lane.issue(CONV_FRAMES, x, past, weight, bias, out, strides=strides, residual=residual)
