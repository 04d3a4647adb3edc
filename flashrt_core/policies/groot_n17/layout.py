"""Where the rows of a prompt lie: the text stack's order, and the order behind it.

The chat template puts images first: ``lead`` tokens, then for each view a start mark, its image
rows and an end mark, then the text. The text stack is causal, so it runs in that order. Behind it
nothing depends on the order: there all image rows come first, then all text rows, so that what
attends to one kind finds it in one piece, with the padding of the bucket at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import GrootConfig


@dataclass(frozen=True)
class Run:
    """Text rows without an image between them.

    Attributes:
        row: the first one's row in the text stack.
        text: its index among the text rows.
        count: how many.
    """

    row: int
    text: int
    count: int

    @property
    def rows(self) -> slice:
        """In the text stack."""
        return slice(self.row, self.row + self.count)

    @property
    def texts(self) -> slice:
        """Among the text rows."""
        return slice(self.text, self.text + self.count)


def marks(config: GrootConfig, views: int) -> int:
    """Text rows in front of what follows the last image; at least as many are in every prompt."""
    return config.lead + 2 * views


def image_rows(config: GrootConfig, view: int) -> slice:
    """Rows of a view's image in the text stack."""
    first = config.lead + 1 + view * (config.view_tokens + 2)
    return slice(first, first + config.view_tokens)


def text_runs(config: GrootConfig, views: int, bucket: int) -> tuple[Run, ...]:
    """The runs of a prompt of ``bucket`` text rows, padding included."""
    runs, text = [Run(0, 0, config.lead + 1)], config.lead + 1
    for view in range(views):
        count = 2 if view < views - 1 else bucket - text
        runs.append(Run(image_rows(config, view).stop, text, count))
        text += count
    return tuple(runs)


def positions(config: GrootConfig, views: int, bucket: int) -> Tensor:
    """[3, S] int64: time, row and column of every row of the text stack.

    Text counts up on all three. An image stands still in time and spreads over its grid; what is
    behind it starts one past its furthest.
    """
    side = config.grid // config.merge
    found, at = [], 0
    for view, run in enumerate(text_runs(config, views, bucket)):
        found.append(torch.arange(at, at + run.count).expand(3, -1))
        at += run.count
        if view < views:
            cells = torch.arange(side * side)
            found.append(at + torch.stack((torch.zeros_like(cells), cells // side, cells % side)))
            at += side
    return torch.cat(found, dim=1)
