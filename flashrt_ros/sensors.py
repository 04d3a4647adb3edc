"""The inputs that a robot has: cameras, whose images are checked and decoded, and joint states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flashrt_core import images
from flashrt_core.errors import ImageError, shorten
from flashrt_ros.decoding import NewestFirst
from flashrt_ros.inputs import Input, Refusal, RefusedError, Sample
from flashrt_ros.parameters import WAIT, CameraConfig

# Joint states kept: a quarter of a second at 1 kHz, for the one that is nearest to older images.
KEPT_STATES = 256


class CameraInput(Input):
    """Images of one camera, raw or compressed; converts to [H, W, 3] uint8 RGB.

    A compressed one is decoded before it is kept: in ``offer``, or between :meth:`start` and
    :meth:`stop` on a thread of its own, where the newest goes first and others are left out.

    Args:
        config: the camera.
        raw: hand raw images on as they came instead of converting them.
    """

    def __init__(self, config: CameraConfig, *, raw: bool = False) -> None:
        super().__init__(config.key, config.topic, config.max_age_s, config.on_missing)
        self.config = config
        self._raw = raw
        self._decoder: NewestFirst[Sample] | None = None

    def start(self, decoded: Callable[[], None], refused: Callable[[Refusal], None]) -> None:
        """Decode on a thread from now on.

        Args:
            decoded: called on that thread after each picture that can be used.
            refused: called there for each that cannot.
        """
        if not self.config.compressed:
            return

        def work(sample: Sample) -> None:
            refusal = self._decode(sample)
            if refusal is None:
                decoded()
            else:
                refused(refusal)

        self._decoder = NewestFirst(f"decode-{self.name}", work)

    def stop(self, timeout_s: float) -> bool:
        """End that thread; whether it ended in time. Harmless where there is none."""
        decoder, self._decoder = self._decoder, None
        return decoder is None or decoder.stop(timeout_s)

    def convert(self, sample: Sample) -> np.ndarray | images.Frame:
        config = self.config
        if config.compressed:
            rgb: np.ndarray = sample.value
            return rgb
        frame: images.Frame = sample.value
        try:
            if not self._raw:
                return frame.rgb()
            frame.raw()  # its bytes are still there
            return frame
        except ImageError as error:
            raise RefusedError("decode", str(error)) from error

    def _accept(self, message: Any) -> Any:
        required = self.config.encoding
        reason = "decode" if self.config.compressed else "encoding"
        try:
            if self.config.compressed:
                images.check_compressed(message, required)
                return message
            images.resolve_encoding(message.encoding, required)
            reason = "size"
            return images.frame_of(message, required, self.config.rotation_deg)
        except ImageError as error:
            raise RefusedError(reason, str(error)) from error

    def _take(self, sample: Sample) -> Refusal | None:
        if not self.config.compressed:
            return super()._take(sample)
        if self._decoder is None:
            return self._decode(sample)
        self._decoder.put(sample)
        return None

    def _decode(self, sample: Sample) -> Refusal | None:
        config = self.config
        try:
            rgb = images.decode_rgb(sample.value, config.encoding, config.rotation_deg)
        except Exception as error:  # on a thread that must live: OpenCV has more than one family
            own = isinstance(error, ImageError)
            refusal = Refusal("decode", str(error) if own else f"{type(error).__name__}: {error}")
            self.discard(sample, refusal)
            return refusal
        self._keep(replace(sample, value=rgb))
        return None


class JointsInput(Input):
    """Joint positions by name; converts to [joints] float32 in the configured order.

    Further joints in a message are ignored. Positions are checked, velocities and efforts are not
    looked at.
    """

    def __init__(
        self,
        name: str,
        topic: str,
        names: Sequence[str],
        max_age_s: float,
        on_missing: str = WAIT,
    ) -> None:
        super().__init__(name, topic, max_age_s, on_missing, KEPT_STATES)
        self.names = tuple(names)
        self._orders: dict[tuple[str, ...], list[int]] = {}

    def convert(self, sample: Sample) -> np.ndarray:
        values: np.ndarray = sample.value
        return values

    def _accept(self, message: Any) -> Any:
        came = tuple(message.name)
        order = self._orders.get(came)
        if order is None:
            order = self._order(came)
            # A robot sends one or two layouts; anything else must not grow without bound.
            if len(self._orders) < 16:
                self._orders[came] = order
        positions = message.position
        if len(positions) != len(came):
            raise RefusedError(
                "size", f"expected {len(came)} positions, one a name, got {len(positions)}"
            )
        with np.errstate(over="ignore"):  # beyond float32 becomes infinite, and is refused below
            values = np.array([positions[i] for i in order], np.float32)
        if not np.isfinite(values).all():
            bad = [n for n, v in zip(self.names, values, strict=True) if not np.isfinite(v)]
            raise RefusedError("not finite", f"position of {_names(bad)} is NaN or infinite")
        return values

    def _order(self, came: tuple[str, ...]) -> list[int]:
        missing = [name for name in self.names if name not in came]
        if missing:
            raise RefusedError(
                "joint names", f"joints {_names(missing)} are missing; got {_names(came)}"
            )
        repeated = sorted({name for name in self.names if came.count(name) > 1})
        if repeated:
            raise RefusedError("joint names", f"joints {_names(repeated)} appear twice")
        return [came.index(name) for name in self.names]


def _names(names: Sequence[str]) -> str:
    return shorten(", ".join(names))
