"""Precision plans as pure data: the format of every dense product of a policy.

A policy names its products (sites) and the plans it ships; a YAML file gives any other plan.
Everything that is no product (cache, residual streams, norms) has the format of the plan's base.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from .errors import OptionError
from .files import local_path
from .specs import DType

_WHERE = "option 'precision'"


class Format(StrEnum):
    """How a product keeps its weights and reads its input."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP8 = "fp8"  # E4M3 weights, a scale a row or one; E4M3 input, one calibrated scale
    W8A16 = "w8a16"  # E4M3 weights, a scale a row; bf16 input
    I8A16 = "i8a16"  # int8 weights, a scale a row; bf16 input
    W4A16 = "w4a16"  # 4-bit weights, a scale for each run of a row; bf16 input


#: Element type of the weights of low-bit formats.
STORED: Mapping[Format, DType] = {
    Format.FP8: DType.F8E4M3,
    Format.W8A16: DType.F8E4M3,
    Format.I8A16: DType.I8,
    Format.W4A16: DType.U8,  # two weights a byte
}
#: Weights of a row that share a scale in :attr:`Format.W4A16`: the largest that divides the row.
RUNS = (128, 64, 32, 16, 8)
LOW_BIT = tuple(STORED)
#: Formats that a plan of this base may give a site.
_OF_BASE: Mapping[Format, tuple[Format, ...]] = {
    Format.FP32: (Format.FP32,),
    Format.BF16: (Format.BF16, *LOW_BIT),
}
_WIDE = {Format.FP32: DType.F32, Format.BF16: DType.BF16}


@dataclass(frozen=True)
class Site:
    """A dense product of a policy, the same one in every layer.

    Attributes:
        weight: static buffer of its weights, [layers, N, K] or [N, K].
        source: scratch buffer that holds its input; empty where an op makes the input itself.
        rows: int32 buffer that says how many of the input's rows count; empty: all.
        formats: low-bit formats that it may have.
        shared: static buffer of the same weights that other products read, too, in the plan's base;
            where the site has the base, it does without one of its own. Empty: none.
        stage: where it is, of the sites that share a weight; empty: in every other stage.
        rows_scaled: whoever multiplies two E4M3 operands can multiply by a scale for each row of
            the weight. A library product cannot, not at its full speed.
    """

    weight: str
    source: str = ""
    rows: str = ""
    formats: tuple[Format, ...] = (Format.FP8, Format.W8A16, Format.I8A16)
    rows_scaled: bool = True
    shared: str = ""
    stage: str = ""

    @property
    def weight_scale(self) -> str:
        """Buffer of its weights' scales, float32: the weights' shape without K, or 1 for N."""
        return f"{self.weight}_scale"

    @property
    def importance(self) -> str:
        """While weights are packed: how much their columns count, [layers, K] float32."""
        return f"{self.weight}_importance"

    def scales(self, form: Format, rows: int) -> int:
        """Scales of a weight of N ``rows`` in a low-bit format: N, or one for all."""
        return rows if self.rows_scaled or form is not Format.FP8 else 1

    def stored(self, form: Format, columns: int) -> int:
        """Numbers that hold a row of ``columns`` weights in a low-bit format."""
        return columns // 2 if form is Format.W4A16 else columns

    @property
    def x_scale(self) -> str:
        """Buffer of its input's scales, float32: one a layer."""
        return self.weight.removesuffix("weight") + "x_scale"

    def source_of(self, form: Format) -> str:
        """The scratch buffer that holds its input in a format; empty as ``source`` is."""
        # A buffer a format: the sites that read one activation need not agree.
        return f"{self.source}_fp8" if self.source and form is Format.FP8 else self.source


@dataclass(frozen=True)
class Precision:
    """A plan.

    Attributes:
        base: fp32 or bf16, of all that is no site.
        sites: format of every site, in the policy's order.
    """

    base: Format
    sites: Mapping[str, Format]

    @property
    def wide(self) -> DType:
        """Element type of the base."""
        return _WIDE[self.base]

    @property
    def calibrated(self) -> tuple[str, ...]:
        """Sites whose input needs a calibrated scale."""
        return tuple(name for name, form in self.sites.items() if form is Format.FP8)

    @property
    def observed(self) -> tuple[str, ...]:
        """Sites that a calibration serves: those that need one, and those whose four bits it makes
        better.
        """
        served = (Format.FP8, Format.W4A16)
        return tuple(name for name, form in self.sites.items() if form in served)

    @property
    def tier(self) -> str:
        """What its gates are named after: the base, or ``fp8`` where a site has 8 bits, or ``int4``
        where one has four.
        """
        if Format.W4A16 in self.sites.values():
            return "int4"
        return "fp8" if set(self.sites.values()) & set(LOW_BIT) else str(self.base)

    def __str__(self) -> str:
        """The whole plan in one line; equal plans have equal text."""
        parts = [str(self.base)]
        for form in LOW_BIT:
            names = [name for name, of in self.sites.items() if of is form]
            if names:
                parts.append(f"{form}: {', '.join(names)}")
        return "; ".join(parts)


def run_of(columns: int) -> int:
    """Weights that share a scale in a row of so many; OptionError where no run divides it."""
    for run in RUNS:
        if columns % run == 0:
            return run
    raise OptionError(_WHERE, expected=f"rows of a multiple of {RUNS[-1]} for w4a16", got=columns)


class _Loader(yaml.SafeLoader):
    """Refuses a line that stands twice: a mapping keeps the first's place and the second's value,
    which no reader of the file would guess.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key that is no text", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} stands twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_precision(
    value: str | Path | Precision,
    sites: Mapping[str, Site],
    presets: Mapping[str, Mapping[str, Any]],
) -> Precision:
    """The plan that an option names.

    Args:
        value: a preset's name, or the path of a YAML table like the presets; a plan is itself.
        sites: the policy's, by name.
        presets: name -> table: ``base`` and ``sites``, a mapping of site patterns to formats of
            which later lines win.

    Raises:
        OptionError: no such preset or file, not such a table, or a plan that no site can have.
    """
    if isinstance(value, Precision):
        return value
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if text in presets:
        return _parse(presets[text], f"preset {text!r}", sites)
    if not (text.endswith((".yaml", ".yml")) or "/" in text):
        raise OptionError(
            _WHERE, expected=f"one of {sorted(presets)}, or the path of a YAML file", got=repr(text)
        )
    path = local_path(_WHERE, value, OptionError)
    try:
        table = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "text that is not UTF-8"
        raise OptionError(_WHERE, expected="a readable file", got=f"{reason}: {text!r}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        told = str(error).replace('in "<unicode string>", ', "at ")
        raise OptionError(_WHERE, expected="YAML", got=f"{told} in {text!r}") from error
    return _parse(table, repr(text), sites)


def _parse(table: Any, origin: str, sites: Mapping[str, Site]) -> Precision:
    if not isinstance(table, Mapping) or set(table) - {"base", "sites"} or "base" not in table:
        raise OptionError(_WHERE, expected=f"'base' and 'sites' in {origin}", got=f"{_keys(table)}")
    base = _format(table["base"], f"base in {origin}", tuple(_OF_BASE))
    lines = table.get("sites")
    lines = {} if lines is None else lines
    if not isinstance(lines, Mapping):
        raise OptionError(_WHERE, expected=f"'pattern: format' lines in {origin}", got=repr(lines))
    chosen = dict.fromkeys(sites, base)
    for pattern, value in lines.items():
        form = _format(value, f"{pattern!s} in {origin}", tuple(Format))
        matched = [name for name in sites if fnmatchcase(name, str(pattern))]
        if not matched:
            raise OptionError(
                _WHERE, expected=f"sites of {list(sites)} in {origin}", got=repr(pattern)
            )
        chosen.update(dict.fromkeys(matched, form))
    for refusal in _refused(base, chosen, sites, lines, origin):
        raise refusal
    return Precision(base, chosen)


def _refused(
    base: Format,
    chosen: Mapping[str, Format],
    sites: Mapping[str, Site],
    lines: Mapping[str, Any],
    origin: str,
) -> Iterator[OptionError]:
    """What is wrong with the formats, with a remedy that leaves a site one line of its own."""
    for name, form in chosen.items():
        allowed = [
            each for each in _OF_BASE[base] if each not in LOW_BIT or each in sites[name].formats
        ]
        if form not in allowed:
            yield OptionError(
                _WHERE,
                expected=f"{' or '.join(allowed)} for {name} with base {base} in {origin}",
                got=str(form),
                remedy=f"make the line of {name} '{name}: {allowed[0]}'"
                if name in lines
                else f"add the line '{name}: {allowed[0]}' behind",
            )


def _format(value: Any, what: str, allowed: tuple[Format, ...]) -> Format:
    if value not in [str(form) for form in allowed]:
        raise OptionError(_WHERE, expected=f"{' or '.join(allowed)} for {what}", got=repr(value))
    return Format(value)


def _keys(table: Any) -> str:
    return str(list(table)) if isinstance(table, Mapping) else repr(table)
