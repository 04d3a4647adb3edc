"""Tools tell in one line what is wrong with their arguments or missing on this machine."""

from __future__ import annotations

import ast
import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import toolbox  # noqa: E402  (tools/ is no package)

from test.starting import interrupted_starts  # noqa: E402

COMPARISONS = ("compare_precision", "compare_true_size")
#: Tool -> arguments with which it would begin to work.
TOOLS = {
    "bench_docs": ["--check"],
    "check_gpu": [],
    "compare_episodes": ["--narrow", "--device", "cpu"],
    "compare_precision": ["--narrow", "--place", "cpu"],
    "compare_scales": [],
    "compare_true_size": ["--narrow", "--place", "cpu"],
    "interface_docs": ["--check"],
    "record_goldens": ["lerobot"],
    "record_lingbot_goldens": [],
    "soak": [],
    "train_tiny_tokenizer": [],
}
WRITERS = sorted(set(TOOLS) - {"bench_docs", "interface_docs", "train_tiny_tokenizer"})


#: A process that has imported what the tools import, and forks: they start in no time.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["numpy", "torch", "rich", "typer", "flashrt_core.load"])


def _run(path: str, arguments: tuple[str, ...], said: str) -> None:
    """In the child: the tool as a program, its stderr in a file, foreign packages hidden."""
    with open(said, "w") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  (until the process ends)
    os.environ |= {"CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}
    os.chdir(ROOT)
    sys.modules |= dict.fromkeys(("lerobot", "openpi"))  # type: ignore[arg-type]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def call(tool: str, *arguments: str) -> tuple[int, str]:
    """Exit status and stderr of a tool on a machine without a GPU and without foreign packages."""
    path = str(ROOT / "tools" / f"{tool}.py")
    with tempfile.NamedTemporaryFile("r") as said:
        child = _FORKS.Process(target=_run, args=(path, arguments, said.name))
        child.start()
        child.join()
        return child.exitcode or 0, said.read()


def refused(tool: str, *arguments: str) -> str:
    """The one line with which it ends."""
    status, said = call(tool, *arguments)
    assert status == 2 and said.count("\n") == 1, f"{status}: {said}"
    assert said.startswith(f"{tool}: error: ")
    return said


def test_every_tool_with_a_main_is_held_to_it() -> None:
    """But for those that set up, build or test: before anything is installed, or around pytest."""
    runs = 'if __name__ == "__main__":'
    own = {path.stem for path in (ROOT / "tools").glob("*.py") if runs in path.read_text()}
    assert own - {"build_abi", "build_kernels", "environment", "interfaces", "second_try"} == set(
        TOOLS
    )


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_signals_are_answered_before_anything_is_imported(tool: str) -> None:
    tree = ast.parse((ROOT / "tools" / f"{tool}.py").read_text())
    named = [each for each in tree.body if isinstance(each, ast.Import | ast.ImportFrom)]
    assert ast.unparse(named[0]) == "from __future__ import annotations"
    assert ast.unparse(named[1]) == "import at_once"


def test_a_signal_in_the_imports_is_one_line(tmp_path: Path) -> None:
    path = str(ROOT / "tools" / "compare_scales.py")
    for number, status, out, err in interrupted_starts([path, "--help"], tmp_path, (0.0, 0.2)):
        assert (status, out, err) == (128 + number, "", "compare_scales: interrupted\n")


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_an_unknown_option_is_one_line(tool: str) -> None:
    assert "--colour" in refused(tool, *TOOLS[tool], "--colour")


@pytest.mark.parametrize("tool", WRITERS)
def test_a_place_that_cannot_be_written_is_found_first(tool: str) -> None:
    said = refused(tool, *TOOLS[tool], "--output", "/proc/none/r.json")
    assert "option '--output': expected a file that can be written" in said


def test_a_tokenizer_needs_a_place_too() -> None:
    assert "it is a folder" in refused("train_tiny_tokenizer", "/")


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("check_gpu", ["--timeout", "-1"], "--timeout: expected seconds"),
        ("check_gpu", ["--timeout", "nan"], "--timeout: expected seconds"),
        ("soak", ["--decisions", "0"], "--decisions: expected a whole number in 1..10000000"),
        ("soak", ["--decisions", "-5"], "got '-5'"),
        ("soak", ["--decisions", "9" * 5000], "got '99999"),
        ("compare_precision", ["--place", "gpu"], "--place"),
        ("compare_precision", ["--weights", "flat"], "--weights"),
    ],
)
def test_bad_arguments(tool: str, arguments: list[str], message: str) -> None:
    assert message in refused(tool, *arguments)


@pytest.mark.parametrize(
    ("name", "bad", "most"),
    [
        ("views", ("0", "9", "4", "two", ""), 3),
        ("tokens", ("0", "4097", "²"), 4096),
        ("horizon", ("0", "257"), 256),
        ("decisions", ("0", "-5", "1.5"), 1000),
    ],
)
def test_ranges_of_a_comparison(name: str, bad: tuple[str, ...], most: int) -> None:
    parser = toolbox.Parser("A tool.\n")
    parser.add_shape(decisions=2)
    assert getattr(parser.parse_args([f"--{name}", str(most)]), name) == most
    for text in bad:
        with pytest.raises(toolbox.ToolError, match=rf"--{name}: expected a whole number in 1\.\."):
            parser.parse_args([f"--{name}={text}"])
    with pytest.raises(toolbox.ToolError, match="--view"):
        parser.parse_args(["--view", "2"])  # a shortened option would not be seen in a result


@pytest.mark.parametrize("tool", COMPARISONS)
def test_a_comparison_of_nine_views_is_refused(tool: str) -> None:
    assert "--views: expected a whole number in 1..3, got '9'" in refused(tool, "--views", "9")


@pytest.mark.parametrize("tool", ["check_gpu", "compare_precision", "soak"])
def test_without_a_gpu(tool: str) -> None:
    said = refused(tool)
    assert "device to 'cpu'" not in said, "no option of this tool"
    if tool == "compare_precision":
        assert "with --place cpu --narrow" in said


def test_without_lerobot() -> None:
    said = refused("compare_true_size", *TOOLS["compare_true_size"])
    assert "packages: expected lerobot, transformers, got no lerobot" in said
    assert "goldens of lerobot: expected its packages" in refused("record_goldens", "lerobot")
    assert "goldens of openpi: expected its packages" in refused("record_goldens", "openpi")


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    toolbox.write_report({"a": 1}, tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text() == '{\n "a": 1\n}\n'
    toolbox.write_report({"a": 1}, None)
