"""The image tower of GR00T N1.7's reference, straight from its formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..reference import Array, gelu
from .formulas import VISUAL, Formulas, mix


class Tower(Formulas):
    """Images to the rows that the text stack takes."""

    def tower(self, images: Sequence[Array]) -> tuple[Tensor, list[Tensor]]:
        """[V T, D] image rows, and those of each layer that the text stack takes features of."""
        config, found = self.config, []
        x = torch.stack([self._patches(image) for image in images])  # [V, patches, D]
        for layer in range(config.vision.depth):
            name = f"{VISUAL}blocks.{layer}."
            x = x + self._tower_attention(name, self.norm(f"{name}norm1", x, config.eps))
            normal = self.norm(f"{name}norm2", x, config.eps)
            hidden = gelu(self.linear(f"{name}mlp.linear_fc1", normal))
            x = x + self.linear(f"{name}mlp.linear_fc2", hidden)
            if layer in config.vision.features:
                index = config.vision.features.index(layer)
                merger = f"{VISUAL}deepstack_merger_list.{index}."
                grouped = self.norm(f"{merger}norm", self._groups(x), config.eps)
                found.append(self._merged(merger, grouped))
        normal = self.norm(f"{VISUAL}merger.norm", x, config.eps)
        return self._merged(f"{VISUAL}merger.", self._groups(normal)), found

    def _groups(self, x: Tensor) -> Tensor:
        return x.reshape(-1, self.config.merged)

    def _merged(self, name: str, x: Tensor) -> Tensor:
        y = self.linear(f"{name}linear_fc1", x)
        y = 0.5 * y * (1.0 + torch.erf(y / math.sqrt(2.0)))
        return self.linear(f"{name}linear_fc2", y)

    def _cells(self) -> list[tuple[int, int]]:
        """Row and column of each patch, in the order of the groups."""
        grid, merge = self.config.grid, self.config.merge
        return [
            (top + y, left + x)
            for top in range(0, grid, merge)
            for left in range(0, grid, merge)
            for y in range(merge)
            for x in range(merge)
        ]

    def _patches(self, image: Array) -> Tensor:
        """[R, R, 3] uint8 -> [patches, D] with positions; both frames are the image."""
        size = self.config.patch
        pixels = (torch.from_numpy(image.copy()).to(self.place, self.dtype) / 255.0 - 0.5) / 0.5
        weight = self.get(f"{VISUAL}patch_embed.proj.weight")
        bias = self.get(f"{VISUAL}patch_embed.proj.bias")
        learned = self.get(f"{VISUAL}pos_embed.weight")
        found = []
        for row, column in self._cells():
            part = pixels[row * size : (row + 1) * size, column * size : (column + 1) * size]
            frames = part.permute(2, 0, 1)[:, None].expand(-1, 2, -1, -1)
            found.append(torch.einsum("octyx,ctyx->o", weight, frames) + bias)
            found[-1] = found[-1] + self._between(learned, row, column)
        return torch.stack(found)

    def _between(self, learned: Tensor, row: int, column: int) -> Tensor:
        """The learned table at a place between its own."""
        side, grid = self.config.vision.table, self.config.grid
        total = torch.zeros(learned.shape[1], dtype=self.dtype)
        line = torch.linspace(0, side - 1, grid, dtype=torch.float32)
        y, x = float(line[row]), float(line[column])
        for at, down in ((int(y), 1 - y % 1), (min(int(y) + 1, side - 1), y % 1)):
            for to, across in ((int(x), 1 - x % 1), (min(int(x) + 1, side - 1), x % 1)):
                total = total + down * across * learned[at * side + to]
        return total

    def _tower_attention(self, name: str, x: Tensor) -> Tensor:
        sizes = self.config.vision
        q, k, v = (
            part.unflatten(-1, (sizes.heads, sizes.head_dim))
            for part in self.linear(f"{name}attn.qkv", x).chunk(3, dim=-1)
        )
        quarter = sizes.head_dim // 4
        frequency = self.frequencies(quarter, self.config.vision_theta)
        places = torch.tensor(self._cells(), dtype=torch.float64)
        angles = (places[:, :, None] * frequency).flatten(1)  # rows, then columns
        q, k = (self.turn(part, angles) for part in (q, k))
        mixed = mix(q, k, v)
        return self.linear(f"{name}attn.proj", mixed.flatten(-2))
