"""The shortcut around a halving: means over what falls together, the rest spread over channels."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .check import ArgCheck
from .launch import Launcher, blocks, require_bf16_rows, require_packed
from .op import Lane, Op


def mean_frames_ref(x: Tensor, out: Tensor, *, halved: tuple[bool, bool]) -> None:
    """float32, one rounding into ``out``."""
    st, ss = (2 if each else 1 for each in halved)
    frames = F.pad(x.float().permute(0, 4, 1, 2, 3), (0, 0, 0, 0, -x.shape[1] % st, 0))
    V, C, T, H, W = frames.shape
    cells = frames.reshape(V, C, T // st, st, H // ss, ss, W // ss, ss)
    cells = cells.permute(0, 1, 3, 5, 7, 2, 4, 6).reshape(V, out.shape[4], -1, *out.shape[1:4])
    out.copy_(cells.mean(dim=2).permute(0, 2, 3, 4, 1).add_(out))


def mean_frames_launch(
    launcher: Launcher, x: Tensor, out: Tensor, *, halved: tuple[bool, bool]
) -> None:
    """One thread a number of ``out``."""
    require_bf16_rows("mean_frames", x=x, out=out)
    require_packed("mean_frames", x=x, out=out)
    videos, *sizes = x.shape
    _, made, height, width, channels = out.shape
    grid = (blocks(width * channels, 256), height, videos * made)
    counts = (*sizes, made, height, width, channels, int(halved[0]), int(halved[1]))
    launcher.launch("mean_frames_bf16", grid, 256, (x, out, *counts))


MEAN_FRAMES = Op("mean_frames", mean_frames_ref, mean_frames_launch)


def mean_frames(lane: Lane, x: Tensor, out: Tensor, *, halved: tuple[bool, bool]) -> None:
    """out = out + means of ``x``.

    With st (ss) = 2 where time (space) is halved, else 1: the numbers [C, st, ss, ss] of what falls
    together, in this order, are O groups; out gets their means. An odd first frame is paired with
    zeros in front of it.

    Args:
        lane: where the op goes.
        x: [V, T, H, W, C] float.
        out: [V, T', H', W', O] float, apart from ``x``; O divides C st ss ss.
        halved: whether time is, and whether space is.

    Raises:
        ContractError: shapes, formats or devices do not fit.
    """
    check = ArgCheck("mean_frames")
    check.tensor("x", x, ("V", "T", "H", "W", "C"))
    st, ss = (2 if each else 1 for each in halved)
    sizes = check.sizes
    grid = (-(-sizes["T"] // st), sizes["H"] // ss, sizes["W"] // ss)
    check.tensor("out", out, (sizes["V"], *grid, "O"))
    check.require(
        sizes["H"] % ss == 0 and sizes["W"] % ss == 0 and sizes["C"] * st * ss**2 % sizes["O"] == 0,
        "sizes of 'x'",
        expected=f"multiples of {ss}, and channels that {sizes['O']} groups divide",
        got=list(x.shape),
    )
    check.apart("out", out, "x", x)
    lane.issue(MEAN_FRAMES, x, out, halved=halved)
