"""pip route: run the CMakeLists.txt that colcon runs, then pack its install tree into the wheel.

FLASHRT_CORE_ONLY=1 skips the interface build: the wheel then holds the two Python modules, and the
library of the C interface where a C++ compiler is found; the node cannot start, since it has no
messages.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT / "tools"))

import build_abi  # noqa: E402  (tools/ is no package)
import interfaces  # noqa: E402

CORE_ONLY = os.environ.get("FLASHRT_CORE_ONLY") == "1"
COMPILER = build_abi.find_compiler()
PURE = CORE_ONLY and COMPILER is None
# Byte code, the generator's own metadata and C sources of the extension modules stay out, and so do
# headers and the record of the temporary prefix: other packages build against a colcon workspace.
SKIPPED_SUFFIXES = {".c", ".pyc"}
SKIPPED_PARTS = {"__pycache__", "include", "parent_prefix_path"}


def packable(path: Path, inside: Path) -> bool:
    """Whether a file of the install tree belongs in the wheel."""
    parts = path.relative_to(inside).parts
    return (
        path.is_file()
        and path.suffix not in SKIPPED_SUFFIXES
        and not SKIPPED_PARTS.intersection(parts)
        and not any(part.endswith(".egg-info") for part in parts)
    )


class BuildWithInterfaces(build_py):
    """``build_py`` that adds the generated messages and the files outside site-packages."""

    def run(self) -> None:
        if not self.editable_mode:
            # What an earlier build left, a module deleted since among it, would be packed again.
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if self.editable_mode:  # of the modules alone
            return
        if CORE_ONLY:
            if COMPILER:
                library = Path(self.build_lib) / "flashrt_core" / "lib" / build_abi.OUTPUT.name
                build_abi.build(library, COMPILER)
                library.with_suffix(".so.hash").unlink()
                shutil.copy2(build_abi.HEADERS / "flashrt.h", library.parent)
            return
        temp = Path(self.get_finalized_command("build").build_temp).resolve()
        prefix = temp / "prefix"
        shutil.rmtree(prefix, ignore_errors=True)
        interfaces.build(temp / "cmake", prefix, interfaces_only=False)
        modules = next(prefix.glob("lib/python3*/site-packages"))
        for path in sorted(modules.rglob("*")):
            if packable(path, modules):
                target = Path(self.build_lib) / path.relative_to(modules)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        data: dict[str, list[str]] = {}
        for path in sorted(prefix.rglob("*")):
            if packable(path, prefix) and modules not in path.parents:
                folder = str(path.parent.relative_to(prefix))
                data.setdefault(folder, []).append(os.path.relpath(path, ROOT))
        self.distribution.data_files.extend(sorted(data.items()))


class PlatformWheel(bdist_wheel):
    """A wheel tagged for this platform and Python, as it holds compiled libraries."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = PURE


class BinaryDistribution(Distribution):
    """Tells setuptools that the wheel is not pure although no ext_modules are listed."""

    def has_ext_modules(self) -> bool:
        return not PURE


setup(
    cmdclass={"build_py": BuildWithInterfaces, "bdist_wheel": PlatformWheel},
    distclass=BinaryDistribution,
    data_files=[],
)
