"""The scale table of a plan with quantised inputs: what was observed, and what plan it fits.

A JSON file with a checksum over its content. It belongs to one plan: policy, configuration, shapes,
precision, weights and host-side transforms. Not to a device: the ranges are those of the network,
as the ops' references compute it, and a kernel that meant something else by a scale would be a
new ``VERSION``.
"""

from __future__ import annotations

import json
import math
import os
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import FlashRTError, OptionError
from .files import local_path
from .fingerprint import Fingerprint, sha256_of
from .outputs import write_text
from .precision import Precision, Site
from .specs import ShapeKey

FORMAT, VERSION = "flashrt calibration", 1
#: What scales belong to: parts of a fingerprint, and of the transforms those in front.
KEY = ("policy", "config", "shapes", "precision", "weights", "encoding")
METHODS = ("amax", "percentile")
_WHERE = "option 'calibration'"
_LARGEST = 448.0  # of E4M3
_AGAIN = "calibrate again"
_NAME = "name the file that flashrt calibrate wrote (its last line says where)"
# Before the command, which so stays whole to the end of the line.
_MAKE = "make one of a file of observations (or of --bag BAG --params FILE, or --made-up N): run"


class NoCalibrationError(OptionError):
    """A plan has no calibration, or one of another plan: calibrating mends it."""


@dataclass(frozen=True)
class Range:
    """Magnitudes of a site's input, one number a layer.

    Attributes:
        amax: largest.
        percentile: that which the calibration's percentile of all numbers stay below.
    """

    amax: tuple[float, ...]
    percentile: tuple[float, ...]


@dataclass(frozen=True)
class Calibration:
    """What a calibration found.

    Attributes:
        key: what it belongs to, by the names of ``KEY``.
        recorder: arch and library that computed it, and where the observations came from.
        observations: digest of each.
        method: which of a range the scales come from, "amax" or "percentile".
        percentile: of the ranges.
        sites: by name; every site of the policy, whatever the plan makes of it.
        inputs: of the sites that may have weights of four bits: mean square of each column of the
            input, a tensor [K] a layer, as bf16 has them.
        path: file that it was read from; None for one that was made just now.
    """

    key: Mapping[str, str]
    recorder: Mapping[str, str]
    observations: tuple[str, ...]
    method: str
    percentile: float
    sites: Mapping[str, Range]
    inputs: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict, compare=False)
    path: Path | None = field(default=None, compare=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the whole content; part of the fingerprint."""
        return sha256_of(self._document())

    def __str__(self) -> str:
        """Which one it is, for people: where it lies, what it was made of and its digest."""
        count, origin = len(self.observations), self.recorder.get("observations", "unknown")
        place = "not in a file" if self.path is None else str(self.path)
        return f"{place} ({count} observations, {origin}; digest {self.digest[:16]})"

    def scales(self, site: str) -> list[float]:
        """Scale of a site's input, a number a layer: the least power of two that fits the range.

        A division by a power of two is exact, so a kernel may multiply by the inverse and get the
        same bits; and E4M3 has the same precision wherever a number lies in its upper 13 binades.
        """
        return [power_of_two(value / _LARGEST) for value in getattr(self.sites[site], self.method)]

    def fill(self, sites: Mapping[str, Site], buffers: Mapping[str, Tensor]) -> None:
        """Writes the scales into the buffers that a plan has for them.

        OptionError where a site has not one range a layer.
        """
        for name, site in sites.items():
            if site.x_scale in buffers:
                target, scales = buffers[site.x_scale], self.scales(name)
                if len(scales) != target.numel():
                    got = f"a malformed one, {len(scales)} for {name}"
                    raise _error(f"{target.numel()} ranges, one a layer", got, None, _AGAIN)
                target.copy_(target.new_tensor(scales))

    def importances(
        self, sites: Mapping[str, Site], buffers: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """How much the columns of a plan's four-bit weights count, by :attr:`Site.importance`.

        OptionError where a site has not one number a column.
        """
        found = {}
        for name, site in sites.items():
            weight = buffers.get(site.weight)
            if weight is None or weight.dtype is not torch.uint8 or name not in self.inputs:
                continue
            wanted = [2 * weight.shape[-1]] * (len(weight) if weight.dim() == 3 else 1)
            got = [len(each) for each in self.inputs[name]]
            if got != wanted:
                told = f"a malformed one, {got[:1]} x {len(got)} for {name}"
                raise _error(f"{wanted[:1]} x {len(wanted)} columns", told, None, _AGAIN)
            stacked = torch.stack(self.inputs[name])
            found[site.importance] = stacked if weight.dim() == 3 else stacked[0]
        return found

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; OutputError where that is not possible."""
        text = json.dumps({**self._document(), "sha256": self.digest}, indent=1)
        write_text(text + "\n", path, "calibration")

    def _document(self) -> dict[str, Any]:
        columns = {
            name: [_text_of(layer) for layer in layers] for name, layers in self.inputs.items()
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "key": dict(self.key),
            "recorder": dict(self.recorder),
            "observations": {"count": len(self.observations), "each": list(self.observations)},
            "method": self.method,
            "percentile": self.percentile,
            "sites": {
                name: {part: list(values) for part, values in asdict(found).items()}
                for name, found in self.sites.items()
            },
            **({"inputs": columns} if columns else {}),
        }


def key_of(
    fingerprint: Fingerprint,
    precision: Precision,
    *,
    shapes: Iterable[ShapeKey],
    config: Any,
    encoding: Mapping[str, str],
) -> dict[str, str]:
    """What scales for ``precision`` on the rest of a plan belong to.

    ``config`` and ``encoding`` are what of the configuration and of the host-side transforms the
    network's activations depend on. Of ``shapes`` those of every camera count: what a plan may do
    without some of them for, it computes of the others.
    """
    shapes = sorted(shapes)
    most = max(shape.views for shape in shapes)
    own = {
        "shapes": "; ".join(str(shape) for shape in shapes if shape.views == most),
        "config": sha256_of(config),
        "precision": str(precision),
        "encoding": sha256_of(dict(encoding)),
    }
    return {name: own.get(name) or fingerprint.parts[name] for name in KEY}


def default_path(key: Mapping[str, str]) -> Path:
    """Where the calibration of a plan is kept when no file is named; OptionError without a home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(root) if root else Path.home() / ".cache"
    except RuntimeError as error:
        raise OptionError(
            "folder of calibrations",
            expected="one below XDG_CACHE_HOME or your home",
            got="neither",
            remedy="set XDG_CACHE_HOME to a folder of yours",
        ) from error
    return folder / "flashrt" / "calibration" / f"{sha256_of(dict(key))}.json"


def power_of_two(value: float) -> float:
    """The least power of two >= ``value`` that float32 holds at full precision; 1 for 0."""
    if value <= 0.0:
        return 1.0
    mantissa, exponent = math.frexp(value)  # mantissa in [0.5, 1)
    return math.ldexp(1.0, max(-126, exponent - (mantissa == 0.5)))


def find_calibration(
    option: str | Path | None, key: Mapping[str, str], precision: Precision, command: str
) -> Calibration | None:
    """The calibration that a plan needs; None where it does without, and there is none.

    Args:
        option: the file; None looks where ``flashrt calibrate`` puts it.
        key: of the plan.
        precision: of the plan.
        command: what to run where there is none, or another.

    Raises:
        OptionError: no such file, or one that :func:`read_calibration` or :func:`check` refuses.
    """
    path = default_path(key) if option is None else local_path(_WHERE, option, OptionError)
    if not os.path.exists(path):  # also where the folder must not be looked into
        if option is None and not precision.calibrated:
            return None
        raise NoCalibrationError(
            _WHERE,
            expected="a calibration file, as this precision plan quantises activations",
            got=f"none at {str(path)!r}" if option else "none for this plan",
            remedy=f"{_MAKE} {command}",
        )
    found = read_calibration(path)
    check(found, key, precision, command)
    return found


def read_calibration(path: Path) -> Calibration:
    """Reads a file and holds it against its checksum.

    OptionError, in a word each: unreadable, truncated, unknown format, edited or malformed.
    """
    document = _load(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _error(f"a file of format {FORMAT!r}", "an unknown format", path, _NAME)
    if document.get("version") != VERSION:
        version = document.get("version")
        raise _error(f"version {VERSION}", f"unknown version {version!r}", path, _AGAIN)
    stated = document.pop("sha256", None)
    if stated != sha256_of(document):
        wrong = "one that was edited by hand or damaged: its checksum does not fit its content"
        raise _error("a file as it was written", wrong, path, _AGAIN)
    try:
        found = Calibration(
            key={str(name): str(value) for name, value in document["key"].items()},
            recorder={str(name): str(value) for name, value in document["recorder"].items()},
            observations=tuple(map(str, document["observations"]["each"])),
            method=str(document["method"]),
            percentile=float(document["percentile"]),
            sites={str(name): _range(value) for name, value in document["sites"].items()},
            inputs={
                str(name): tuple(map(_columns_of, layers))
                for name, layers in document.get("inputs", {}).items()
            },
            path=path,
        )
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        got = f"a malformed one ({type(error).__name__}: {error})"
        raise _error("a file as flashrt calibrate writes it", got, path, _AGAIN) from error
    if found.method not in METHODS:
        raise _error(f"a method of {METHODS}", f"a malformed one ({found.method!r})", path, _AGAIN)
    return found


def check(
    found: Calibration, key: Mapping[str, str], precision: Precision, command: str = _AGAIN
) -> None:
    """OptionError, by name: foreign (another policy's), stale (of another plan), or incomplete."""
    policy = found.key.get("policy")
    if policy != key["policy"]:
        raise _error(
            f"one of policy {key['policy']!r}",
            f"a foreign one, of policy {policy!r}",
            None,
            "name a file of this policy, or leave the option out and let flashrt calibrate choose",
        )
    other = [name for name in KEY if found.key.get(name) != key[name]]
    if other:
        raise NoCalibrationError(
            _WHERE,
            expected="one of this plan",
            got=f"a stale one, of other {' and '.join(other)}",
            remedy=f"run {command}",
        )
    missing = [name for name in precision.calibrated if name not in found.sites]
    if missing:
        raise _error("a range of every fp8 site", f"none of {missing}", None, f"run {command}")


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise _error("a file of flashrt calibrate", reason, path, _NAME) from error
    try:
        return json.loads(text)
    except RecursionError as error:
        raise _error("a calibration file", "an unknown format", path, _NAME) from error
    except ValueError as error:  # JSON's own, and numbers of thousands of digits
        cut = text.lstrip().startswith("{") and not text.rstrip().endswith("}")
        got = f"a truncated file of {len(text)} characters" if cut else f"no JSON: {error}"
        raise _error("a whole JSON file", got, path, _AGAIN if cut else _NAME) from error


def _text_of(columns: Tensor) -> str:
    """Numbers as bf16, in base64: a text of them would be four times as long."""
    return b64encode(columns.bfloat16().view(torch.int16).numpy().tobytes()).decode()


def _columns_of(text: str) -> Tensor:
    bits = torch.frombuffer(bytearray(b64decode(text, validate=True)), dtype=torch.int16)
    columns = bits.view(torch.bfloat16).float()
    if not bool(((columns >= 0.0) & columns.isfinite()).all()):
        raise ValueError("squares that are no numbers")
    return columns


def _range(value: Mapping[str, Any]) -> Range:
    parts = {name: tuple(map(float, value[name])) for name in ("amax", "percentile")}
    if not all(math.isfinite(each) and each >= 0.0 for part in parts.values() for each in part):
        raise ValueError("ranges that are no numbers")
    return Range(**parts)


def _error(expected: str, got: str, path: Path | None, remedy: str | None) -> FlashRTError:
    where = "" if path is None else f" in {str(path)!r}"
    return OptionError(_WHERE, expected=expected, got=f"{got}{where}", remedy=remedy)
