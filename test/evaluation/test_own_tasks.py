"""Task folders of users: whatever is wrong in one is a line that names the place, and status 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flashrt_core.cli.main import USER_ERROR, app, run
from flashrt_core.evaluation.task import TaskError, find_task

NAME = "task_of_a_user"
WHOLE = """\
import numpy as np
from flashrt_core.policies.base import Observation

class Episode:
    instruction, success, score, time_s = "go", False, 0.0, 0.0

    @property
    def done(self):
        return self.time_s >= 1.0

    def observation(self):
        pictures = {"base_0_rgb": np.zeros((8, 8, 3), np.uint8)}
        return Observation(pictures, np.zeros(2, np.float32))

    def advance(self, target, seconds):
        self.time_s += seconds

    def close(self):
        pass

class Task:
    name, dt_s = "mine", 0.1
    views = {"base_0_rgb": "front"}
    joint_names, instructions = ("one", "two"), ("go",)

    def start(self, seed):
        return Episode()

TASK = Task()
PLAN = {"checkpoint": "random:3", "preset": "tiny", "steps": 2, "threads": 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty package folder that the import system forgets again."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop(NAME, None)
    (tmp_path / NAME).mkdir()
    yield tmp_path / NAME
    sys.modules.pop(NAME, None)


def evaluate(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str, str]:
    arguments = ["eval", str(folder), "--episodes", "1", "--no-reference", *more]
    code = run(lambda: app(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err.splitlines()[-1] if captured.err else ""


def line(text: str, words: str) -> int:
    return next(at for at, each in enumerate(text.splitlines(), 1) if words in each)


def test_a_whole_one_is_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "__init__.py").write_text(WHOLE)
    code, out, _ = evaluate(folder, capsys)
    assert code == 0 and "mine, 1 starts" in out
    task = find_task(str(folder)).task
    assert (task.dt_s, task.longest_s) == (0.1, 600.0)
    with pytest.raises(TaskError, match=r"save\(\) of episode 1 of .*expected a method"):
        task.start(1).save()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        # Where it is imported: the place, and what Python says of it.
        ("class Task:", "class Task", "SyntaxError: expected ':'"),
        ("TASK = Task()", "TASK = Task()\nraise ValueError('no\\nrobot')", "ValueError: no robot"),
        ("TASK = Task()", "import sys; sys.exit(7)", "SystemExit: 7"),
        ("TASK = Task()", "TASK = Task(1)", "TypeError: Task() takes no arguments"),
        # What an episode raises.
        ("return Episode()", "return Episode(seed)", "TypeError: Episode() takes no arguments"),
        ("        pictures = {", "        1 / 0\n        pictures = {", "ZeroDivisionError: divi"),
        ("self.time_s += seconds", "self.speed += seconds", "AttributeError: 'Episode' object"),
        ("return self.time_s >= 1.0", "return self.over", "AttributeError: 'Episode' object"),
    ],
)
def test_an_exception_is_a_line_with_its_place(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    text = WHOLE.replace(old, new)
    (folder / "__init__.py").write_text(text)
    code, out, err = evaluate(folder, capsys)
    where = next(each for each in new.splitlines() if not each.endswith("{") and each != old)
    assert (code, out) == (USER_ERROR, "") and "Traceback" not in err
    assert f"{folder}/__init__.py:{line(text, where.strip())}: expected no exception, got" in err
    assert said in err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("dt_s = \"mine\", 0.1", "dt_s = \"mine\", -1", "dt_s of task", ),
        ("dt_s = \"mine\", 0.1", "dt_s = \"mine\", '0.1'", "above 0, got '0.1' (str)"),
        ("dt_s = \"mine\", 0.1", "dt_s = \"mine\", float('nan')", "above 0, got nan (float)"),
        ("(\"one\", \"two\")", "'two'", "joint_names of task"),
        ("views = {\"base_0_rgb\": \"front\"}", "views = ['base_0_rgb']", "views of task"),
        ("views = {\"base_0_rgb\"", "views = {\"my_slot\"", "option 'views': expected at"),
        ("PLAN = {", "PLAN = 3 #", "PLAN of task"),
        ("\"steps\": 2", "\"steps\": 'two'", "PLAN of task"),
        ("\"steps\": 2", "\"stops\": 2", "got stops"),
        ("return Episode()", "return 3", "got int without instruction, time_s, success, score"),
        ("    def close(self):\n        pass\n", "", "got Episode without close"),
        ("return Observation(pictures", "return (pictures", "an Observation with images"),
        ("np.zeros(2", "np.zeros(3", "a state of 2 numbers, got a state of shape [3]"),
        ("{\"base_0_rgb\": np", "{\"top\": np", "got no image 'base_0_rgb'"),
        ("return self.time_s >= 1.0", "return 'soon'", "expected true or false, got 'soon' (str)"),
        ("score, time_s = \"go\", False, 0.0", "score, time_s = \"go\", False, None", "score of"),
        # Without an end: time stands still, or goes on and on.
        ("self.time_s += seconds", "pass", "behind advance(..., 0.02): expected more than 0 s"),
        (
            "return self.time_s >= 1.0",
            "return False\n    longest_s = 1\n",
            "expected an end within 2 s of simulated time, got none at 2.02 s; let `done` be true",
        ),
    ],
)  # fmt: skip
def test_what_is_not_as_it_is_to_be(
    folder: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    text = WHOLE.replace("class Task:", "class Task:\n    longest_s = 2")
    assert old in text
    (folder / "__init__.py").write_text(text.replace(old, new))
    code, out, err = evaluate(folder, capsys)
    assert (code, out) == (USER_ERROR, "") and "Traceback" not in err
    assert said in err


def test_a_task_is_asked_first_whether_the_machine_will_do(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = WHOLE.replace(
        "TASK =", "def check(self): raise OSError('no joystick')\nTask.check = check\nTASK ="
    )
    (folder / "__init__.py").write_text(text)
    monkeypatch.setattr(
        "flashrt_core.evaluation.command.EnginePilot", lambda *_: pytest.fail("loaded")
    )
    code, _, err = evaluate(folder, capsys)
    assert code == USER_ERROR and "check() of task" in err and "OSError: no joystick" in err


@pytest.mark.parametrize(
    ("found", "got"),
    [("(np.zeros(2), np.zeros(3))", "tuple"), ("{'a': 1}", "dict"), ("None", "NoneType")],
)
def test_a_state_to_save_is_an_array(folder: Path, found: str, got: str) -> None:
    method = f"    def save(self):\n        return {found}\n\n    def close"
    (folder / "__init__.py").write_text(WHOLE.replace("    def close", method))
    with pytest.raises(TaskError, match=rf"save\(\) of episode 1 of .*an array .*got {got}; put"):
        find_task(str(folder)).task.start(1).save()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{"base_0_rgb": np.zeros((8, 8, 3), np.uint8)}', "7", "got images that are a int"),
        ("np.zeros(2, np.float32))", "[[1.0], [1.0, 2.0]])", "got a state that is no array"),
    ],
)
def test_an_observation_of_another_kind(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "__init__.py").write_text(WHOLE.replace(old, new))
    with pytest.raises(TaskError, match=said):
        find_task(str(folder)).task.start(1).observation()


def test_numbers_of_numpy_will_do(folder: Path) -> None:
    text = WHOLE.replace('"mine", 0.1', '"mine", np.float32(0.1)')
    text = text.replace("return self.time_s >= 1.0", "return np.bool_(self.time_s >= 1.0)")
    (folder / "__init__.py").write_text(text)
    task = find_task(str(folder)).task
    episode = task.start(0)
    assert type(task.dt_s) is float and episode.done is False
    episode.advance(np.zeros(2), 1.5)
    assert episode.done is True and episode.time_s == 1.5
