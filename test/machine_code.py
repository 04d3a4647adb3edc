"""Disassembled kernels, and what the design relies on in them: a table, easy to extend."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

Code = list[str]  # instructions in program order

WAIT = r"ACQBULK"  # the wait for the kernels in front
TRIGGER = r"PREEXIT"  # the next kernel may start
LOCAL = r"(LDL|STL)\b"
#: Weights on their way: loads with a prefetch of 256 bytes, or bulk copies.
FETCH = r"LDG\S*LTC256B|UBLKCP|UTMALDG"
MMA = r"HMMA\.16816\.F32\.BF16|[HQ]GMMA\.64x"  # mma.sync, or wgmma


@dataclass(frozen=True)
class Promise:
    """What the machine code of some kernels must hold.

    Attributes:
        kernels: pattern that their whole name matches.
        holds: pattern of an instruction that must be there.
        before: pattern of an instruction: the first ``holds`` comes before its last use.
        behind: pattern of an instruction: the first ``holds`` comes behind its first use.
        lacks: pattern of an instruction that must not be there.
        architectures: pattern of those that it is promised on.
        why: said when it does not hold.
    """

    kernels: str
    holds: str
    why: str
    before: str = ""
    behind: str = ""
    lacks: str = ""
    architectures: str = r".*"

    def broken(self, kernel: str, code: Code) -> str | None:
        """What is wrong with a kernel, in one line; None where the promise holds."""
        first = _first(code, self.holds)
        if first is None:
            return f"{kernel}: expected {self.holds}, got none: {self.why}"
        if self.before:
            last = _last(code, self.before)
            if last is None or first > last:
                return f"{kernel}: expected {self.holds} before {self.before}: {self.why}"
        if self.behind:
            start = _first(code, self.behind)
            if start is None or first < start:
                return f"{kernel}: expected {self.holds} behind {self.behind}: {self.why}"
        if self.lacks and uses(code, self.lacks):
            return f"{kernel}: expected no {self.lacks}: {self.why}"
        return None


_OVERLAPPING = r"(90a|100a|110a|120a)"  # with programmatic dependent launch
_FEW_ROWS = (
    r"(ada_rms_norm_(qkv_rope_kv|geglu)|linear_gated_residual|(layer_norm_)?linear(_squares)?_k\d+"
    r"|layer_norm_attention)_.*"
)
#: Those of E4M3, and of them those behind a norm.
_NORMED_E4M3 = (
    r"(layer_norm_linear_k\d+_\d+|layer_norm_attention(_self)?_k\d+_d\d+|ada_rms_norm_geglu_\d+)"
    r"_fp8_(into_fp8_)?sm90"
)
_E4M3 = rf"({_NORMED_E4M3}|linear(_gated_residual)?_k\d+_\d+_fp8_sm90)"
#: Those in which what the next kernel fetches ahead would be in the way of x.
_BEHIND_X = (
    rf"({_NORMED_E4M3}|(layer_norm_)?linear_k(1536|6144)_\d+_(bf16|fp8)(_into_fp8)?_sm90"
    r"|linear_gated_residual_k4096_\d+_fp8_sm90)"
)
#: Those that stream so many weights that the next kernel starts when the last are under way.
_LATE = r"\w*linear(_gated_residual|_squares)?_k(3072|14336)_\w+_bf16_sm90"

PROMISES = (
    Promise(
        r"(?!copy_pieces).*", WAIT, "a kernel that may start early waits for those in front",
        architectures=_OVERLAPPING,
    ),
    Promise(r"copy_pieces", r"LDG\.E\.128", "what is aligned is read 16 bytes at a time"),
    Promise(r"copy_pieces", r"STG\.E\.128", "what is aligned is written 16 bytes at a time"),
    Promise(
        rf"(?!action_in|copy_pieces|{_LATE}|{_BEHIND_X}).*", TRIGGER,
        "the next kernel is to get ready while this one waits",
        before=WAIT, architectures=_OVERLAPPING,
    ),
    Promise(
        r"action_in.*", TRIGGER,
        "the kernels of a step read earlier stages without a wait, so its first holds them back",
        behind=WAIT, architectures=_OVERLAPPING,
    ),
    Promise(
        _BEHIND_X, TRIGGER, "x comes before what the next kernel fetches ahead",
        behind=WAIT, architectures=_OVERLAPPING,
    ),
    Promise(
        _LATE, TRIGGER, "what the next kernel fetches ahead is under way while this one ends",
        behind=r"HGMMA", architectures=_OVERLAPPING,
    ),
    Promise(
        _FEW_ROWS + r"_(cluster|hopper|sm90)", FETCH, "weights are on their way before the wait",
        before=WAIT, architectures=_OVERLAPPING,
    ),
    Promise(
        r"(linear_gated_residual|(layer_norm_)?linear(_squares)?)_k\d+(_\d+)+_(bf16|i8|w4|fp8)_(cluster|sm90)",
        WAIT, "a block does not wait for all it has under way before it fetches the next",
        lacks=r"MEMBAR\S*GPU", architectures=r"90a",
    ),
    Promise(
        _FEW_ROWS, MMA, "products run on the tensor cores, on what came behind the wait",
        behind=WAIT, architectures=_OVERLAPPING,
    ),
    Promise(_FEW_ROWS, MMA, "products run on the tensor cores"),
    Promise(
        _FEW_ROWS + r"_i8.*", r"HFMA2\.BF16",
        "int8 is widened two values at a time, while the loads of x are under way",
        behind=r"LDG\S*STRONG|UTMALDG", architectures=_OVERLAPPING,
    ),
    Promise(
        _FEW_ROWS + r"_w4_sm90", r"HFMA2\.BF16", "four bits are widened two values at a time",
        behind=WAIT,
    ),
    Promise(
        r"(?!linear_).*_fp8(_sm90)?", r"F2FP\.SATFINITE\.E4M3", "the chip quantises",
        architectures=r"(89|90a|100a|110a|120a)",
    ),
    Promise(
        rf"(?!{_E4M3})" + _FEW_ROWS + r"_sm90", r"HGMMA\.64x",
        "the body of Hopper uses wgmma",
    ),
    Promise(_E4M3, r"QGMMA\.64x", "products of E4M3 at their own rate"),
    Promise(r"attention_(?!rows).*(?<!_sm90)", MMA, "attention runs on the tensor cores"),
    Promise(r"glu_linear_.*_bf16_sm90", r"HGMMA\.64x", "the body of Hopper uses wgmma"),
    Promise(
        r"glu_linear_.*_sm90", r"UTMALDG\.4D \[", "weights are on their way before the wait",
        before=WAIT,
    ),
    Promise(r"glu_linear_.*_fp8_sm90", r"QGMMA\.64x", "products of E4M3 at their own rate"),
    Promise(r"attention_segments.*_sm90", r"HGMMA\.64x128x16", "the body of Hopper uses wgmma"),
    Promise(r"attention_shared.*_sm90", r"HGMMA\.64x256x16", "the body of Hopper uses wgmma"),
    Promise(r"attention_biased.*_sm90", r"HGMMA\.64x128x16", "the body of Hopper uses wgmma"),
    Promise(r"conv_frames_.*(?<!_sm90)", MMA, "products run on the tensor cores"),
    Promise(r"conv_frames_.*_sm90", r"HGMMA\.64x160x16", "the body of Hopper uses wgmma"),
    Promise(r".*_sm90", r"[HQ]GMMA|UTMALDG", "what has this ending needs Hopper"),
)  # fmt: skip


def broken_promises(
    architecture: str, kernels: dict[str, Code], promises: Iterable[Promise] = PROMISES
) -> Iterator[str]:
    """What is wrong on one architecture, a line each."""
    for promise in promises:
        if re.fullmatch(promise.architectures, architecture):
            for kernel, code in kernels.items():
                if re.fullmatch(promise.kernels, kernel) and (line := promise.broken(kernel, code)):
                    yield f"sm_{architecture}, {line}"


def disassembler() -> str | None:
    """nvdisasm from PATH or from its wheel; None where there is none."""
    wheel = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / "nvdisasm"
    return shutil.which("nvdisasm") or (str(wheel) if wheel.is_file() else None)


def disassemble(tool: str, cubin: Path) -> dict[str, Code]:
    """Instructions of every kernel of a file, with their predicates, without comments."""
    text = subprocess.run([tool, "-c", cubin], capture_output=True, text=True, check=True).stdout
    parts = re.split(r"^\.text\.(\w+):$", text, flags=re.MULTILINE)
    return {
        name: re.findall(r"^\s+(?:/\*\w+\*/)?\s*(.+?) ;", body, re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def uses(code: Code, instruction: str) -> bool:
    """Whether an instruction is there."""
    return _first(code, instruction) is not None


def _first(code: Code, instruction: str) -> int | None:
    return next((i for i, line in enumerate(code) if re.search(instruction, line)), None)


def _last(code: Code, instruction: str) -> int | None:
    return max((i for i, line in enumerate(code) if re.search(instruction, line)), default=None)
