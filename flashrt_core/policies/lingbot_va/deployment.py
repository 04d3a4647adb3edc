"""What a LingBot-VA checkpoint folder says beside its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...errors import WeightsError
from ..base import Deployment
from ..normalisation import Statistics, read_norm_stats


@dataclass(frozen=True)
class Details:
    """LingBot-VA's part of a deployment.

    Attributes:
        actions: statistics; None means the network's range is the robot's unit.
        tokenizer: a SentencePiece model in the folder.
        text_encoder: the folder of the text encoder's weights.
        trained: weights of a file, not random ones: they know their own text encoder.
    """

    actions: Statistics | None = None
    tokenizer: Path | None = None
    text_encoder: Path | None = None
    trained: bool = False


def read_deployment(path: Path | None, norm_stats: Path | None = None) -> Deployment:
    """Reads everything but the weights; None for random ones, which may have ``norm_stats``."""
    if path is not None:
        raise WeightsError(
            f"checkpoint {str(path)!r}", expected="random:<seed>", got="a folder, not read yet"
        )
    actions = None if norm_stats is None else read_norm_stats(norm_stats, "actions")
    return Deployment("random", details=Details(actions))
