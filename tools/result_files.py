"""Result files as documents may use them: whole, of the true size, measured on a GPU.

What is wrong with one is told in a line that names the file and the command which makes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolbox import ROOT, ToolError

from flashrt_core.files import read_json

FOLDER = "bench/results/h200"
#: Beside it, results of machines without a GPU: of the small policy.
CPU_FOLDER = "bench/results/cpu"
#: File -> what makes it, from the root of the checkout; its --output follows. With its folder where
#: the other one's is made in another way.
COMMANDS = {
    "h200/eval_tabletop.json": "flashrt eval tabletop --episodes 200"
    " --precision cuda:bf16,cuda:fp8",
    "eval_tabletop.json": "flashrt eval tabletop --precision fp32,bf16,fp8 --episodes 200",
    "eval_tabletop_forks.json": "flashrt eval tabletop --no-reference --episodes 50 --forks 4"
    " --resume",
    "eval_tabletop_node.json": "flashrt eval tabletop --ros --episodes 50",
    "eval_tabletop_node_150ms.json": "flashrt eval tabletop --ros --episodes 50 --added-delay 150"
    " --strategy replace,temporal_ensemble,real_time_chunking",
    "groot_n17_bf16.json": "flashrt bench groot_n17 --trace --overlap both --peer lerobot",
    "groot_n17_capsule.json": "flashrt bench capsule groot_n17",
    "groot_n17_fp8.json": "flashrt bench groot_n17 --trace --precision fp8,bf16"
    " --fidelity qualified.json",
    "lingbot_va_bf16.json": "flashrt bench lingbot_va --trace --peer lerobot --peer-paths eager",
    "lingbot_va_capsule.json": "flashrt bench capsule lingbot_va --trials 1",
    "lingbot_va_episodes.json": "python tools/compare_episodes.py --device cuda --chunks 4",
    "lingbot_va_low_bit.json": "flashrt bench lingbot_va --trace --precision bf16,int4,fp8_int4",
    "node_pi05.json": "flashrt bench node --seconds 600",
    "pi05_bf16.json": "flashrt bench pi05 --trace --overlap both",
    "pi05_capsule.json": "flashrt bench capsule",
    "pi05_fp8.json": "flashrt bench pi05 --trace --precision fp8,bf16 --fidelity qualified.json",
    "pi05_precision.json": "python tools/compare_precision.py",
    "pi05_soak.json": "python tools/soak.py",
}
Result = dict[str, Any]


class MissingError(Exception):
    """What a document needs and its file does not have, in words."""


class Fields(dict[str, Any]):
    """An object of a result file; a field that it lacks is a MissingError with its name."""

    def __missing__(self, name: str) -> Any:
        raise MissingError(f"field {name!r}")


def read_result(path: Path) -> Result:
    """A result file; ToolError where it is none, or one of a GPU not of the true size there."""
    with of_file(path):
        result = _fields(read_json(path, _what(path), ToolError))
        if not isinstance(result, dict):
            raise TypeError(f"expected an object, got a {type(result).__name__}")
        if why := result.get("partial"):
            raise ToolError(_what(path), expected="a whole result", got=f"a part of one: {why}")
        other = "" if _on_cpu(path) else _not_true(result)
        if other:
            raise ToolError(_what(path), expected="a result of the true size on a GPU", got=other)
    return result


def _on_cpu(path: Path) -> bool:
    return path.parent.name == Path(CPU_FOLDER).name


def _not_true(result: Result) -> str:
    """What else than the true size on a GPU a result is of; empty where it is of that."""
    if tiers := result.get("tiers"):  # of a task's own policy; each tier says where it ran
        names = (tier["name"] for tier in tiers)
        return next((name for name in names if not name.startswith(("cuda ", "reference"))), "")
    words = shlex.split(result["command"])
    values = {}
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        values[name] = value if equals else after
    if result.get("sizes", "true") != "true" or "--narrow" in values:
        return "narrow sizes"
    places = [result.get(name, values.get(f"--{name}", "cuda")) for name in ("place", "device")]
    if places != ["cuda", "cuda"]:
        return "the CPU"
    if values.get("--preset", "base") != "base":
        return f"preset {values['--preset']}"
    return "" if result["gpu"] else "a machine whose GPU nvidia-smi did not tell"


def _fields(value: Any) -> Any:
    if isinstance(value, dict):
        return Fields({name: _fields(each) for name, each in value.items()})
    return [_fields(each) for each in value] if isinstance(value, list) else value


@contextmanager
def of_file(path: Path) -> Iterator[None]:
    """Whatever a file lacks, or has in another form, is a ToolError that names it."""
    folder = CPU_FOLDER if _on_cpu(path) else FOLDER
    command = COMMANDS.get(f"{path.parent.name}/{path.name}", COMMANDS[path.name])
    remedy = f"make it by {command} --output {folder}/{path.name}"
    try:
        yield
    except ToolError as error:
        raise (error if error.remedy else error.reworded(remedy=remedy)) from error
    except MissingError as error:
        raise ToolError(_what(path), expected=error, got="none", remedy=remedy) from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        got = f"one that is malformed ({type(error).__name__}: {error})"
        raise ToolError(_what(path), expected="a result", got=got, remedy=remedy) from error


def told(path: Path) -> str:
    """A path as it is named in messages: from the root of the checkout, if below it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def _what(path: Path) -> str:
    return f"result file {told(path)}"
