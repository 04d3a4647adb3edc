"""The house rules that a reader relies on: who may import whom, and how large a piece may be."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("flashrt_core", "flashrt_ros")

SOFT_LINES, HARD_LINES, FUNCTION_LINES = 400, 600, 60
C_SUFFIXES = (".h", ".hpp", ".c", ".cpp")
# File -> why it may pass the soft limit.
LONG_FILES: dict[str, str] = {}

# Rooms from the top of the house to its foundation: a module imports its own level or lower ones.
# The first prefix that fits counts, so an exception stands above its room.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("flashrt_ros",),
    ("flashrt_core.__main__", "flashrt_core.cli"),
    ("flashrt_core.fidelity.figure",),
    ("flashrt_core.terminal",),
    ("flashrt_core.evaluation",),
    ("flashrt_core.bench",),
    ("flashrt_core.calibration",),
    ("flashrt_core.load",),
    ("flashrt_core.load_checks",),
    ("flashrt_core.load_options",),
    ("flashrt_core.fidelity.qualification",),
    ("flashrt_core.observations", "flashrt_core.preparation"),
    ("flashrt_core.session",),
    ("flashrt_core.c_interface.export", "flashrt_core.snapshots"),
    ("flashrt_core.engine",),
    ("flashrt_core.plan", "flashrt_core.seats"),
    ("flashrt_core.working_set",),
    ("flashrt_core.resident",),
    ("flashrt_core.past", "flashrt_core.drawing", "flashrt_core.decision"),
    ("flashrt_core.c_interface", "flashrt_core.policies"),
    ("flashrt_core.scales", "flashrt_core.capsule"),
    (
        "flashrt_core.devices",
        "flashrt_core.gemm",
        "flashrt_core.weights",
        "flashrt_core.checkpoint",
        "flashrt_core.safetensors_file",
        "flashrt_core.tensors",
        "flashrt_core.image_layout",
        "flashrt_core.images",
        "flashrt_core.fingerprint",
        "flashrt_core.freshness",
        "flashrt_core.guidance",
    ),
    ("flashrt_core.kernels",),
    (
        "flashrt_core.fidelity",
        "flashrt_core.contract",
        "flashrt_core.files",
        "flashrt_core.outputs",
        "flashrt_core.plotting",
        "flashrt_core.precision",
        "flashrt_core.text",
        "flashrt_core.whole_numbers",
    ),
    ("flashrt_core.specs",),
    ("flashrt_core.limits",),
    ("flashrt_core.errors", "flashrt_core.signals"),
)
PURE = (
    "flashrt_core.contract",
    "flashrt_core.precision",
    "flashrt_core.specs",
    "flashrt_core.limits",
    "flashrt_core.errors",
)
ROS_PACKAGES = {
    *("action_msgs", "ament_index_python", "builtin_interfaces", "cv_bridge", "diagnostic_msgs"),
    *("flashrt_ros", "launch", "launch_ros", "lifecycle_msgs", "rcl_interfaces", "rclpy"),
    *("rosbags", "rosgraph_msgs", "rosidl_runtime_py", "sensor_msgs", "std_msgs", "std_srvs"),
    "trajectory_msgs",
}


def module_name(path: Path) -> str:
    """``flashrt_core/devices/__init__.py`` -> ``flashrt_core.devices``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    """Every module of the two packages."""
    return {module_name(p): p for package in PACKAGES for p in (ROOT / package).rglob("*.py")}


@cache
def tree(name: str) -> ast.Module:
    """Syntax tree of a module."""
    return ast.parse(modules()[name].read_text())


@cache
def imports(name: str) -> set[str]:
    """Absolute names that a module imports, anywhere in it, be it for types alone; ``from a import
    b`` gives ``a.b`` where that is a module of ours, else ``a``.
    """
    package = name if modules()[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                kept = parents[: len(parents) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in modules() else base)
    return found - {name}


def level(name: str) -> int:
    """Index in LEVELS of the room that a module belongs to."""
    for index, rooms in enumerate(LEVELS):
        if any(name == room or name.startswith(f"{room}.") for room in rooms):
            return index
    raise AssertionError(f"{name} is in no room: add it to LEVELS, where it belongs")


def ours(name: str) -> set[str]:
    """Modules of the two packages that a module imports."""
    return {other for other in imports(name) if other in modules()}


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_point_down(name: str) -> None:
    if name in PACKAGES:
        assert not ours(name), "a package's __init__ imports none of its modules"
        return
    for other in ours(name) - set(PACKAGES):
        assert level(other) >= level(name), f"{name} imports {other}, which lies above it"


def test_policies_know_neither_engine_nor_device() -> None:
    forbidden = ("flashrt_core.engine", "flashrt_core.session", "flashrt_core.devices")
    for name in modules():
        if name.startswith("flashrt_core.policies"):
            assert not [o for o in ours(name) if o.startswith(forbidden)], name


def test_core_imports_no_ros() -> None:
    for name in modules():
        if name.startswith("flashrt_core"):
            roots = {other.partition(".")[0] for other in imports(name)}
            assert not roots & ROS_PACKAGES, f"{name} imports {roots & ROS_PACKAGES}"


@pytest.mark.parametrize("name", PURE)
def test_declarations_need_neither_torch_nor_numpy(name: str) -> None:
    seen, waiting = set(), [name]
    while waiting:
        current = waiting.pop()
        seen.add(current)
        roots = {other.partition(".")[0] for other in imports(current)}
        assert not roots & {"torch", "numpy"}, f"{current}, which {name} needs, imports {roots}"
        waiting += [other for other in ours(current) - seen if other not in PACKAGES]


def test_the_maths_of_execution_needs_no_ros() -> None:
    room = "flashrt_ros.execution."
    on_ros = {room + "control", room + "controller_state", room + "outputs"}
    seen, waiting = set(), [name for name in modules() if name.startswith(room)]
    assert len(waiting) > 8
    waiting = [name for name in waiting if name not in on_ros]
    while waiting:
        current = waiting.pop()
        seen.add(current)
        roots = {other.partition(".")[0] for other in imports(current) - set(modules())}
        assert not roots & ROS_PACKAGES, f"{current} imports {roots & ROS_PACKAGES}"
        waiting += [other for other in ours(current) - seen if other not in PACKAGES]


def test_no_import_cycle() -> None:
    """Nor one of types: two modules that know each other are one piece in two files."""
    graph = {name: ours(name) - set(PACKAGES) for name in modules()}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail, name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def sources() -> list[Path]:
    """Every Python file of the repository that is written by hand."""
    folders = (*PACKAGES, "examples", "test", "tools", "launch", "docs")
    found = [ROOT / "setup.py", *(p for f in folders for p in (ROOT / f).rglob("*.py"))]
    assert len(found) > 20
    return found


def test_file_sizes() -> None:
    for path in sources():
        name, lines = str(path.relative_to(ROOT)), len(path.read_text().splitlines())
        assert lines <= HARD_LINES, f"{name}: {lines} lines; split it along what it does"
        assert lines <= SOFT_LINES or LONG_FILES.get(name), (
            f"{name}: {lines} lines, over {SOFT_LINES}; split it, or give the reason in LONG_FILES"
        )


def test_c_file_sizes() -> None:
    folders = (ROOT / "csrc" / "abi", ROOT / "csrc" / "include", ROOT / "test" / "abi")
    found = [path for folder in folders for path in folder.iterdir() if path.suffix in C_SUFFIXES]
    assert len(found) > 10
    for path in found:
        lines = len(path.read_text().splitlines())
        assert lines <= SOFT_LINES, f"{path.relative_to(ROOT)}: {lines} lines"


def test_size_exemptions_are_needed() -> None:
    for name in LONG_FILES:
        assert len((ROOT / name).read_text().splitlines()) > SOFT_LINES, f"{name} needs none"


def test_function_sizes() -> None:
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                place = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                assert lines <= FUNCTION_LINES, f"{place}: {lines} lines"


def test_errors_are_not_swallowed() -> None:
    for name in modules():
        for node in ast.walk(tree(name)):
            if isinstance(node, ast.ExceptHandler):
                broad = node.type is None or ast.unparse(node.type) in (
                    "Exception",
                    "BaseException",
                )
                silent = all(isinstance(s, (ast.Pass, ast.Continue)) for s in node.body)
                assert not (broad and silent), f"{name}:{node.lineno} swallows every error"
