"""Compiles the machine, and ops for it as they are asked for, into ``build/emulator``.

An op is preprocessed like any C++, with headers of ``csrc/common`` that hold inline PTX replaced by
those of the same name in ``common/``. In the text that this gives, declarations of shared memory
and of entries, which are not C++, are rewritten; then g++ compiles it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "emulator"

_COMMON = ("-std=c++20", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing")
#: Products and sums become one instruction wherever they can, as nvcc has it.
FLAGS = (*_COMMON, "-O2", "-ffp-contract=fast", "-fvisibility=hidden", "-w")
MACHINE_FLAGS = (
    *_COMMON,
    "-O3",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
)
#: What nvcc defines for a GPU's generation.
ARCHITECTURES = {
    80: ("-D__CUDA_ARCH__=800",),
    90: ("-D__CUDA_ARCH__=900", "-D__CUDA_ARCH_FEAT_SM90_ALL"),
    100: ("-D__CUDA_ARCH__=1000",),
}

_ENTRY = re.compile(r"__emulator_entry\s+void\s+")
_NAME = re.compile(r"(\w+)\s*\(")
_EXTERN = re.compile(
    r"extern __emulator_shared\s+(?:__attribute__\(\(aligned\(\w+\)\)\)\s+)?([\w: ]+?)\s+(\w+)\[\];"
)
_SHARED = re.compile(
    r"__emulator_shared\s+(?:__attribute__\(\(aligned\(\w+\)\)\)\s+)?([^;\[=]+?)\s*\b(\w+)((?:\[[^;]*\])*);"
)


class EmulatorBuildError(Exception):
    """g++ or what it needs said no; the message has its words."""


def _run(command: list[str], what: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise EmulatorBuildError(f"{what}: expected g++, found none") from error
    if done.returncode:
        raise EmulatorBuildError(f"{what}: {done.stderr.strip()[-4000:]}")
    return done.stdout


@cache
def compiler() -> str:
    """What the compiler makes of "native", as part of every key."""
    probe = ["g++", "-march=native", "-dM", "-E", "-x", "c++", os.devnull]
    return _run(probe, "compiler")


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:20]


def _contents(folders: Iterable[Path]) -> Iterator[str | bytes]:
    for folder in folders:
        for path in sorted(folder.glob("*.*")):
            yield path.name
            yield path.read_bytes()


_failed: dict[Path, EmulatorBuildError] = {}


@cache
def machine() -> Path:
    """The library of the machine itself."""
    folder = HERE / "machine"
    target = BUILD / f"machine-{_digest(repr(MACHINE_FLAGS), compiler(), *_contents([folder]))}.so"
    if not target.is_file():
        sources = [str(path) for path in sorted(folder.glob("*.cpp"))]
        _link(["g++", *MACHINE_FLAGS, f"-I{folder}", *sources], target)
    return target


def _link(command: list[str], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target in _failed:  # no second try for the next test
        raise _failed[target]
    partial = target.with_suffix(f".{os.getpid()}.part")
    try:
        _run([*command, "-o", str(partial)], target.name)
    except EmulatorBuildError as error:
        _failed[target] = error
        raise
    partial.replace(target)


@cache
def sources() -> Path:
    """A folder of links: csrc, with what has inline PTX replaced."""
    files = {f"{path.parent.name}/{path.name}": path for path in sorted(CSRC.glob("*/*.cu*"))}
    files |= {f"common/{path.name}": path for path in sorted((HERE / "common").glob("*.cuh"))}
    for name, path in files.items():
        if re.search(r"\basm\b", path.read_text()):
            raise EmulatorBuildError(
                f"csrc/{name}: inline PTX; expected it in a header of csrc/common that holds"
                f" nothing else and has one of its name in {HERE.relative_to(ROOT)}/common"
            )
    folder = BUILD / f"csrc-{_digest(*(f'{name} {path}' for name, path in files.items()))}"
    if not folder.is_dir():
        partial = folder.with_suffix(f".{os.getpid()}.part")
        for name, path in files.items():
            link = partial / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path)
        try:
            partial.replace(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    return folder


#: Of the text of an op: what is put in whose place.
Change = tuple[str, str]


@cache
def library(source: Path, architecture: int = 90, changes: tuple[Change, ...] = ()) -> Path:
    """The library of a file of ``csrc/ops`` or of another one, compiled if it is new.

    Args:
        source: the file.
        architecture: one of ARCHITECTURES.
        changes: each to one place or several of the preprocessed text, which has no comments.
    """
    flags = [*FLAGS, *ARCHITECTURES[architecture]]
    folders = [CSRC / "common", HERE / "common", HERE / "cuda", HERE / "machine"]
    parts = (repr((flags, changes)), compiler(), source.read_bytes(), *_contents(folders))
    quick = BUILD / f"{source.stem}-{_digest(*parts)}.so"
    if quick.is_file():
        return quick
    where = [f"-I{HERE / 'cuda'}", f"-I{HERE}", f"-I{sources()}", "-include", "cuda_runtime.h"]
    path = sources() / "ops" / source.name if source.parent == CSRC / "ops" else source
    text = _run(["g++", "-E", *flags, *where, "-x", "c++", str(path)], source.name)
    for old, new in changes:
        if old not in text:
            raise EmulatorBuildError(f"{source.name}: expected {old!r} in it, found it nowhere")
        text = text.replace(old, new)
    text = rewrite(text)
    target = BUILD / f"{source.stem}-text-{_digest(repr(flags), compiler(), text)}.so"
    if not target.is_file():
        written = target.with_suffix(f".{os.getpid()}.ii")
        BUILD.mkdir(parents=True, exist_ok=True)
        written.write_text(text)
        try:
            _link(["g++", *flags, "-x", "c++-cpp-output", str(written)], target)
        finally:
            written.unlink()
    partial = quick.with_suffix(f".{os.getpid()}.part")
    partial.symlink_to(target.name)
    partial.replace(quick)
    return quick


def _closing(text: str, at: int) -> int:
    """Index behind the parenthesis that closes the one at ``at``."""
    depth = 0
    for index in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index + 1
    raise EmulatorBuildError(f"no end of {text[at : at + 60]!r}")


def _first(arguments: str) -> str:
    """Of several arguments, the first one."""
    depth = 0
    for index, letter in enumerate(arguments):
        depth += (letter in "(<{[") - (letter in ")>}]")
        if letter == "," and depth == 0:
            return arguments[:index]
    return arguments


def rewrite(text: str) -> str:
    """Preprocessed CUDA as C++, with a table of its entries behind."""
    text = _EXTERN.sub(
        r"\1* const \2 = reinterpret_cast<\1*>("
        r"emulator::current->block->memory + emulator::kDynamic);",
        text,
    )
    text = _SHARED.sub(
        r"using \2_shared = \1\3; static const char \2_key = 0;"
        r" \2_shared& \2 = *reinterpret_cast<\2_shared*>("
        r"emulator::static_shared(&\2_key, sizeof(\2_shared)));",
        text,
    )
    parts, rows, at = [], [], 0
    for found in _ENTRY.finditer(text):
        parts.append(text[at : found.start()] + "void ")
        at = found.end()
        said = {"bounds": "1024", "cluster": ""}
        while head := re.compile(r"\s*__emulator_(bounds|cluster)\s*(?=\()").match(text, at):
            at = _closing(text, head.end())
            said[head[1]] = text[head.end() + 1 : at - 1]
        name = _NAME.match(text[at : at + 400].lstrip())
        assert name, text[at : at + 100]
        cluster = f"{{{said['cluster']}}}" if said["cluster"] else "{0, 0, 0}"
        rows.append(
            f'{{"{name[1]}", emulator::Entry<&{name[1]}>::run, emulator::parameters_of(&{name[1]}),'
            f" static_cast<unsigned>({_first(said['bounds'])}), {cluster}}}"
        )
    table = ",\n".join([*rows, "{nullptr, nullptr, 0, 0, {0, 0, 0}}"])
    export = 'extern "C" __attribute__((visibility("default"))) const emulator::Declared'
    return f"{''.join(parts)}{text[at:]}\n{export} emulator_declared[] = {{\n{table}\n}};\n"


def main() -> None:
    """Compiles the ops named on the command line, or all of them."""
    ops = CSRC / "ops"
    named = [ops / f"{name}.cu" for name in sys.argv[1:]] or sorted(ops.glob("*.cu"))
    machine()
    sources()
    with ThreadPoolExecutor(2) as pool:
        for path, built in zip(named, pool.map(library, named), strict=True):
            print(f"{path.name}: {built.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
