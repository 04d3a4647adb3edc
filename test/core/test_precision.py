"""Precision plans: presets, YAML tables, and what no plan can be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flashrt_core.errors import OptionError
from flashrt_core.precision import Format, Precision, Site, read_precision
from flashrt_core.specs import DType

SITES = {
    "eye.in": Site("eye.in_weight", "pixels", formats=(Format.W8A16,)),
    "eye.out": Site("eye.out_weight", "seen"),
    "hand.qkv": Site("hand.qkv_weight"),
    "last": Site("last.weight", "seen", rows="count"),
}
PRESETS: dict[str, dict[str, Any]] = {
    "fp32": {"base": "fp32"},
    "bf16": {"base": "bf16"},
    "mixed": {"base": "bf16", "sites": {"*": "fp8", "eye.in": "bf16", "hand.*": "w8a16"}},
}


def read(value: str | Path) -> Precision:
    return read_precision(value, SITES, PRESETS)


def from_yaml(tmp_path: Path, text: str) -> Precision:
    file = tmp_path / "plan.yaml"
    file.write_text(text)
    return read(str(file))


def test_presets() -> None:
    plain = read("bf16")
    assert str(plain) == plain.tier == "bf16" and plain.wide is DType.BF16
    assert set(plain.sites.values()) == {Format.BF16} and plain.calibrated == ()
    assert str(read("fp32")) == "fp32" and read("fp32").wide is DType.F32
    mixed = read("mixed")
    assert list(mixed.sites.values()) == ["bf16", "fp8", "w8a16", "fp8"]
    assert str(mixed) == "bf16; fp8: eye.out, last; w8a16: hand.qkv"
    assert mixed.calibrated == ("eye.out", "last")
    assert mixed.tier == "fp8" and mixed.wide is DType.BF16


def test_a_table_is_a_plan_like_a_preset(tmp_path: Path) -> None:
    text = "base: bf16\nsites:\n  '*': fp8\n  eye.in: bf16\n  'hand.*': w8a16\n"
    assert from_yaml(tmp_path, text) == read("mixed")
    assert from_yaml(tmp_path, "base: bf16\n") == read("bf16")
    assert from_yaml(tmp_path, "base: bf16\nsites: {last: bf16}\n") == read("bf16")
    only = from_yaml(tmp_path, "base: bf16\nsites: {eye.in: w8a16}\n")
    assert only.tier == "fp8" and only.calibrated == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "expected YAML"),
        ("- base", "expected 'base' and 'sites' in '.*plan.yaml', got .'base'."),
        ("sites: {last: fp8}", "expected 'base' and 'sites'"),
        ("base: bf16\nsite: {}", "expected 'base' and 'sites'.*'site'"),
        ("base: fp8", "expected fp32 or bf16 for base in .*got 'fp8'"),
        ("base: 8", "expected fp32 or bf16 for base in .*got 8"),
        ("base: bf16\nsites: [last]", "expected 'pattern: format' lines"),
        ("base: bf16\nsites: {foot: fp8}", "expected sites of .*'hand.qkv'.*got 'foot'"),
        ("base: bf16\nsites: {1: fp8}", "expected sites of .*got 1"),
        ("base: bf16\nsites: {last: int4}", "expected fp32 or bf16 or .* for last in .*'int4'"),
        ("base: bf16\nsites: {last: [fp8]}", "for last in .*got .'fp8'."),
        (
            "base: bf16\nsites: {last: fp32}",
            "expected bf16 or fp8 or w8a16 or i8a16 for last with base",
        ),
        (
            "base: fp32\nsites: {last: fp8}",
            "expected fp32 for last with base fp32 .*got fp8; make the line of last 'last: fp32'",
        ),
        ("base: bf16\nsites: false", "expected 'pattern: format' lines .*got False"),
        ("base: bf16\nbase: fp32", "twice at line 2, column 1: base: fp32 .* in '.*plan.yaml'"),
        (
            "base: bf16\nsites: {'*': fp8}",
            "bf16 or w8a16 for eye.in with base bf16 .*got fp8; add the line 'eye.in: bf16'",
        ),
        ("base: bf16\nbase: fp32", "expected YAML, got 'base' stands twice"),
        ("base: bf16\nsites: {'*': bf16, last: bf16, '*': fp8}", "'.' stands twice"),
        ("? [a]\n: bf16", "expected YAML, got a key that is no text"),
        ("base: bf16\nsites: {? {a: b} : fp8}", "expected YAML, got a key that is no text"),
        ("base: 2020-99-99", "expected YAML, got month must be"),
        ("base: " + "[" * 5000, "expected YAML"),
    ],
)
def test_tables_that_are_no_plan(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"^option 'precision': .*{message}") as found:
        from_yaml(tmp_path, text)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("value", ["fp4", "", "BF16", 3])
def test_names_of_no_plan(value: Any) -> None:
    with pytest.raises(OptionError, match="'precision': expected one of .'bf16', 'fp32', 'mixed'."):
        read(value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        read(str(tmp_path / "none.yaml"))
    with pytest.raises(OptionError, match="Is a directory"):
        read(str(tmp_path))
    binary = tmp_path / "plan.yml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match="not UTF-8"):
        read(binary)


def test_buffers_of_a_site() -> None:
    site = SITES["last"]
    assert (site.weight_scale, site.x_scale) == ("last.weight_scale", "last.x_scale")
    assert SITES["eye.out"].x_scale == "eye.out_x_scale"
    assert site.source_of(Format.FP8) == "seen_fp8"
    assert site.source_of(Format.W8A16) == site.source_of(Format.BF16) == "seen"
    assert SITES["hand.qkv"].source_of(Format.FP8) == ""
