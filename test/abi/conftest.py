"""The library as it is now, built with the machine's compiler, and hosts that use it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
sys.path.insert(0, str(ROOT / "tools"))

import build_abi  # noqa: E402  (tools/ is no package)

from flashrt_core.session import Session  # noqa: E402
from test.abi.host import FakeCuda, Host  # noqa: E402
from test.core import toy  # noqa: E402

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-missing-field-initializers")
CompileC = Callable[..., Path]


def linked(library: Path) -> tuple[str, ...]:
    """Flags that bind a client to one library and no other."""
    folder = library.parent
    return "-pthread", f"-L{folder}", f"-Wl,-rpath,{folder}", f"-l:{library.name}"


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """The C++ compiler. `make test` refuses to begin on a machine without one."""
    found = build_abi.find_compiler()
    if found is None or shutil.which("cc") is None:
        pytest.skip("no C and C++ compiler on this machine")
    return found


@pytest.fixture(scope="session")
def compile_c(compiler: list[str], tmp_path_factory: pytest.TempPathFactory) -> CompileC:
    """Compiles a C file, into a shared library or, with -fPIE, a program; what it made."""
    folder = tmp_path_factory.mktemp("c")

    def compile_c(source: Path, *flags: str, name: str = "") -> Path:
        output = folder / (name or f"{source.stem}.so")
        if not output.exists():
            kind = [] if "-fPIE" in flags else ["-fPIC", "-shared"]
            libraries = [flag for flag in flags if flag.startswith(("-l", "-L", "-Wl"))]
            words = ["cc", "-std=c99", "-O1", *STRICT, *kind, f"-I{HERE}"]
            words += [*(flag for flag in flags if flag not in libraries), str(source), *libraries]
            done = subprocess.run(
                [*words, "-o", str(output)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
        return output

    return compile_c


@pytest.fixture(scope="session")
def library_path(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The library of this checkout's sources, where exports find it; or FLASHRT_LIBRARY, built
    elsewhere for a machine without a compiler.
    """
    if named := os.environ.get("FLASHRT_LIBRARY"):
        yield Path(named)
        return
    path = tmp_path_factory.mktemp("abi") / "libflashrt.so"
    build_abi.build(path, request.getfixturevalue("compiler"))
    os.environ["FLASHRT_LIBRARY"] = str(path)
    yield path
    del os.environ["FLASHRT_LIBRARY"]


@pytest.fixture
def main(library_path: Path) -> Session:
    """A session of the toy policy that has decided once."""
    main = toy.engine().create_session("main", seed=7, prompt="ab")
    main.decide(toy.see(3))
    return main


@pytest.fixture
def host(main: Session) -> Iterator[Host]:
    """The same through the C interface."""
    with main.export() as export:
        yield Host(export)


@pytest.fixture
def driver(compile_c: CompileC) -> Iterator[FakeCuda]:
    """The CUDA driver that is not there."""
    fake = FakeCuda(compile_c(HERE / "fake_cuda.c", "-std=c11"))
    yield fake
    fake.library.fake_on_launch(None)
    fake.reset()


@pytest.fixture
def client_path(compile_c: CompileC, library_path: Path) -> Path:
    """A host that was compiled against the frozen header."""
    return compile_c(HERE / "client.c", *linked(library_path))


@pytest.fixture
def client(client_path: Path) -> ctypes.CDLL:
    """The same, loaded."""
    return ctypes.CDLL(str(client_path))
