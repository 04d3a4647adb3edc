"""The torch reference of what ``image_patches`` does to a camera's bytes before it cuts them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from .picture import Kind, Picture, tap_weights

# ITU-R BT.601, video range, in units of 2^-20: OpenCV's constants.
_Y, _V_RED, _V_GREEN, _U_GREEN, _U_BLUE = 1220542, 1673527, -852492, -409993, 2116026


def square(image: Tensor, picture: Picture, size: int, method: str) -> Tensor:
    """Raw bytes -> [size, size, 3] uint8 RGB: turned, resized with its aspect, padded with black.

    Args:
        image: [bytes] uint8.
        picture: what they are; one that does not fit into ``image`` is black.
        size: side of the square.
        method: "pillow" or "torch", the filter of the resize.
    """
    out = image.new_zeros((size, size, 3))
    if not picture.fits(image.numel(), size):
        return out
    rgb = torch.rot90(decode(image, picture), -picture.turns, (0, 1))
    inner = (picture.inner_height, picture.inner_width)
    small = resize_like_torch(rgb, inner) if method == "torch" else _resize_like_pillow(rgb, inner)
    rows = slice(picture.top, picture.top + inner[0])
    out[rows, picture.left : picture.left + inner[1]] = small
    return out


def decode(image: Tensor, picture: Picture) -> Tensor:
    """Raw bytes -> [height, width, 3] uint8 RGB, as stored."""
    height, width, step = picture.height, picture.width, picture.step

    def view(size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> Tensor:
        return image.as_strided(size, stride, image.storage_offset() + offset)

    a, b, c = picture.first, picture.second, picture.third
    if picture.kind in (Kind.PACKED, Kind.WIDE):
        samples = view((height, width, picture.pixel), (step, picture.pixel, 1))
        if picture.kind == Kind.PACKED:
            return samples[..., [a, b, c]]
        grey = (samples[..., a].int() * 256 + samples[..., b].int() + 128) // 257
        return grey.to(torch.uint8)[..., None].expand(-1, -1, 3)
    if picture.kind == Kind.YUV422:
        pairs = view((height, width // 2, 4), (step, 4, 1))
        luma = pairs[..., [a, a + 2]].reshape(height, width)
        u, v = (pairs[..., at].repeat_interleave(2, 1) for at in (b, c))
        return _from_yuv(luma, u, v)
    if picture.kind == Kind.YUV420:
        pairs = view((height // 2, width // 2, 2), (step, 2, 1), height * step)
        pairs = pairs.repeat_interleave(2, 0).repeat_interleave(2, 1)
        return _from_yuv(view((height, width), (step, 1)), pairs[..., b], pairs[..., c])
    return _from_bayer(view((height, width), (step, 1)), b, c)


def _from_yuv(y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    luma = (y.int() - 16).clamp_(min=0) * _Y + (1 << 19)
    u, v = u.int() - 128, v.int() - 128
    red, green, blue = _V_RED * v, _V_GREEN * v + _U_GREEN * u, _U_BLUE * u
    rgb = torch.stack([luma + red, luma + green, luma + blue], -1) >> 20
    return rgb.clamp_(0, 255).to(torch.uint8)


def _from_bayer(samples: Tensor, red_row: int, red_column: int) -> Tensor:
    """Bilinear; pixels of the border are those beside them."""
    height, width = samples.shape
    padded = F.pad(samples[None, None].float(), (1, 1, 1, 1), mode="replicate")[0, 0].int()

    def at(dy: int, dx: int) -> Tensor:
        return padded[1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    own, sideways, upright = at(0, 0), (at(0, -1) + at(0, 1)), (at(-1, 0) + at(1, 0))
    cross, beside, above = (sideways + upright + 2) >> 2, (sideways + 1) >> 1, (upright + 1) >> 1
    diagonal = (at(-1, -1) + at(-1, 1) + at(1, -1) + at(1, 1) + 2) >> 2
    rows = torch.arange(height, device=samples.device)
    columns = torch.arange(width, device=samples.device)
    in_row = (rows % 2 == red_row)[:, None]
    in_column = (columns % 2 == red_column)[None, :]
    red = torch.where(
        in_row, torch.where(in_column, own, beside), torch.where(in_column, above, diagonal)
    )
    blue = torch.where(
        in_row, torch.where(in_column, diagonal, above), torch.where(in_column, beside, own)
    )
    green = torch.where(in_row == in_column, cross, own)
    inside = rows.clamp(1, max(height - 2, 1)), columns.clamp(1, max(width - 2, 1))
    return torch.stack([red, green, blue], -1).to(torch.uint8)[inside[0]][:, inside[1]]


def resize_like_torch(rgb: Tensor, inner: tuple[int, int]) -> Tensor:
    """[Y, X, 3] uint8 -> [*inner, 3]: the four nearest pixels, in float32, rounded to a level."""
    pixels = rgb.permute(2, 0, 1)[None].float()
    small = F.interpolate(pixels, size=inner, mode="bilinear", align_corners=False)
    return small[0].round_().clamp_(0, 255).byte().permute(1, 2, 0)


def _resize_like_pillow(rgb: Tensor, inner: tuple[int, int]) -> Tensor:
    """[Y, X, 3] uint8 -> [*inner, 3]: first along the rows, rounded, then along the columns."""
    across, down = (
        _matrix(side, to).to(rgb.device)
        for side, to in zip((rgb.shape[1], rgb.shape[0]), (inner[1], inner[0]), strict=True)
    )
    half = _levels(torch.einsum("yxc,ix->yic", rgb.double(), across))
    return _levels(torch.einsum("yic,jy->jic", half.double(), down))


def _levels(sums: Tensor) -> Tensor:
    # Sums of whole numbers below 2^31: exact in float64.
    return ((sums.long() + (1 << 21)) >> 22).clamp_(0, 255).to(torch.uint8)


@lru_cache(maxsize=16)
def _matrix(side: int, to: int) -> Tensor:
    matrix = torch.zeros(to, side, dtype=torch.float64)
    for index, (first, weights) in enumerate(tap_weights(side, to)):
        matrix[index, first : first + len(weights)] = torch.tensor(weights, dtype=torch.float64)
    return matrix
