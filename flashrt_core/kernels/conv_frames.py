"""Convolution over frames: causal in time, with what came before in front; channels last."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .check import ArgCheck
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


CONV_FRAMES = Op("conv_frames", conv_frames_ref, operands=conv_frames_operands)


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
