"""The header is C and C++, and holds everything that version 1 had, where version 1 had it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from test.abi.conftest import HERE, ROOT, STRICT, CompileC

FROZEN, TODAY = HERE / "flashrt_v1.h", ROOT / "csrc" / "include" / "flashrt.h"
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def plain(header: Path) -> str:
    return _COMMENT.sub(" ", header.read_text())


def structs(header: Path) -> dict[str, list[str]]:
    """Fields of every record, in order."""
    found = {}
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", plain(header), re.DOTALL):
        names = []
        for line in filter(None, map(str.strip, body.split(";"))):
            names += re.findall(r"(\w+)(?:\[\w+\])?(?=\s*(?:,|$))", line)
        found[name] = names
    return found


def constants(header: Path) -> list[str]:
    """Names of all enum values and numeric macros."""
    text = plain(header)
    enums = re.findall(r"\b(FLASHRT_\w+) = -?\d+", text)
    return enums + re.findall(r"#define (FLASHRT_\w+) (?:\d+u?|UINT32_MAX)\b", text)


def prototypes(header: Path) -> list[str]:
    return [" ".join(each.split()) for each in re.findall(r"FLASHRT_API ([^;{]+;)", plain(header))]


def values(compile_c: CompileC, header: Path, folder: Path) -> dict[str, int]:
    """Every constant, and size and field offsets of every record, as a compiler sees them."""
    lines = [f'V("{name}", {name});' for name in constants(header)]
    for record, fields in structs(header).items():
        lines.append(f'V("{record}", sizeof({record}));')
        lines += [f'V("{record}.{field}", offsetof({record}, {field}));' for field in fields]
    source = folder / f"{header.stem}_values.c"
    source.write_text(
        f'#include "{header}"\n#include <stddef.h>\n#include <stdio.h>\n'
        '#define V(name, value) printf("%s %lld\\n", name, (long long)(value))\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = compile_c(source, "-fPIE", "-pie", name=source.stem)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in map(str.split, said.splitlines())}


@pytest.mark.parametrize("header", [TODAY, FROZEN, ROOT / "csrc" / "abi" / "handover.h"])
@pytest.mark.parametrize(
    "language", ["c -std=c99", "c -std=c17", "c++ -std=c++11", "c++ -std=c++20"]
)
def test_it_is_c_and_cpp(compiler: list[str], header: Path, language: str) -> None:
    kind, standard = language.split()
    command = [*compiler, "-x", kind, standard, *STRICT[:4], "-fsyntax-only", str(header)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_the_frozen_header_is_read_whole() -> None:
    """Here, as a pattern that misses something would compare less below."""
    assert len(structs(FROZEN)) == FROZEN.read_text().count("typedef struct flashrt_") - 1 == 13
    assert structs(FROZEN)["flashrt_info"][:4] == [
        "struct_size",
        "abi_version",
        "device",
        "streams",
    ]
    assert structs(FROZEN)["flashrt_info"][10:12] == ["regions", "slots"]
    assert len(prototypes(FROZEN)) == FROZEN.read_text().count("\nFLASHRT_API ") == 27
    assert {"FLASHRT_NONE", "FLASHRT_E_INTERNAL", "FLASHRT_NAME_BYTES"} <= set(constants(FROZEN))


def test_version_1_is_in_todays_header(compile_c: CompileC, tmp_path: Path) -> None:
    frozen, today = (values(compile_c, header, tmp_path) for header in (FROZEN, TODAY))
    growing = {*structs(FROZEN), "FLASHRT_ABI_VERSION"}
    for name, value in frozen.items():
        assert today[name] == value or (name in growing and today[name] > value), name
    for record, fields in structs(FROZEN).items():
        assert structs(TODAY)[record][: len(fields)] == fields, record


def test_functions_have_the_types_of_version_1(compile_c: CompileC, tmp_path: Path) -> None:
    source = tmp_path / "prototypes.c"
    source.write_text(f'#include "{TODAY}"\n' + "\n".join(prototypes(FROZEN)) + "\n")
    compile_c(source)  # a redeclaration of another type is an error


def first_sizes() -> dict[str, int]:
    """Bytes of every record in version 1, as the library has them."""
    text = (ROOT / "csrc" / "abi" / "records.hpp").read_text()
    return {name: int(size) for name, size in re.findall(r"kFirstSize<(\w+)> = (\d+);", text)}


def test_first_sizes_are_those_of_version_1(compile_c: CompileC, tmp_path: Path) -> None:
    said = first_sizes()
    frozen = values(compile_c, FROZEN, tmp_path)
    # What stands behind the last field is padding, which a later field may use.
    assert said == {record: frozen[record] for record in structs(FROZEN)}


def test_all_functions_are_in_the_library_and_no_others(library_path: Path) -> None:
    said = subprocess.run(
        ["nm", "-D", "--defined-only", library_path], capture_output=True, text=True, check=True
    ).stdout
    found = {line.split()[2] for line in said.splitlines() if " T " in line}
    headers = (TODAY, ROOT / "csrc" / "abi" / "handover.h")
    declared = {
        re.search(r"(\w+)\(", each)[1]  # type: ignore[index]
        for header in headers
        for each in prototypes(header)
    }
    assert found == declared
