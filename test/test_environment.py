"""The set-up of environments: an interrupted one, what a GPU adds, one ROS 2 in each."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import environment  # noqa: E402  (tools/ is no package)
import ros_build  # noqa: E402


@pytest.mark.timeout(60)
def test_an_interrupted_set_up_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "environment.py", tmp_path / "tools")
    base: str = sys._base_executable  # type: ignore[attr-defined]
    # The whole group gets the signal, as from a terminal.
    with subprocess.Popen(
        [base, str(tmp_path / "tools" / "environment.py")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        limit = time.monotonic() + 30
        while not (tmp_path / ".venv").is_dir() and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    if "missing:" in err:
        pytest.skip("this machine lacks what the set-up needs")
    assert process.returncode == 130
    assert err == ""
    assert out.splitlines()[-1] == "[setup] interrupted; run make again"
    assert "Traceback" not in out


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """The steps that a set-up would take, by name."""
    found: dict[str, Callable[[], None]] = {}
    monkeypatch.setattr(
        environment, "step", lambda target, name, key, text, do: found.update({name: do})
    )
    monkeypatch.setattr(environment, "check_torch", lambda target: None)
    return found


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that its steps would run."""
    found: list[list[str]] = []
    monkeypatch.setattr(environment, "call", lambda target, command, **_: found.append(command))
    return found


@pytest.fixture
def target(tmp_path: Path) -> environment.Environment:
    return environment.Environment("kilted", tmp_path / "venv")


def test_a_gpu_gets_the_extra_of_the_project_beside_the_pins(
    target: environment.Environment,
    steps: dict[str, Callable[[], None]],
    commands: list[list[str]],
) -> None:
    environment.set_up(target, dev=True, gpu=True)
    assert set(steps) == {
        "python", "dev-packages", "cuda-packages", "interfaces", "project"
    }  # fmt: skip
    steps["cuda-packages"]()
    pip, check = commands
    assert {"requirements/runtime.txt", "requirements/dev.txt"} <= set(pip)
    assert [word.partition(">")[0] for word in pip[-3:]] == [
        "cuda-bindings", "nvidia-cublas", "nvmath-python"
    ]  # fmt: skip
    assert check[-1] == "check"


def test_without_a_gpu_nothing_of_it_is_installed(
    target: environment.Environment, steps: dict[str, Callable[[], None]]
) -> None:
    environment.set_up(target, dev=True)
    assert "cuda-packages" not in steps and "dev-packages" in steps


@pytest.mark.parametrize("ros", environment.ENVIRONMENTS)
def test_one_ros_in_an_environment(
    ros: str, steps: dict[str, Callable[[], None]], commands: list[list[str]]
) -> None:
    target = environment.ENVIRONMENTS[ros]
    for name, dev in (("packages", False), ("dev-packages", True)):
        environment.set_up(target, dev=dev)
        steps[name]()
    for pip in commands[::2]:
        assert pip[0] == str(target.venv / "bin" / "python")
        named = [word for word in pip if word.startswith("requirements/ros-")]
        assert named == [f"requirements/ros-{ros}.txt"]


def test_the_c_interface_is_built_once_for_the_checkout(
    steps: dict[str, Callable[[], None]],
) -> None:
    environment.set_up(environment.JAZZY, dev=True)
    assert "c-interface" not in steps
    environment.set_up(environment.KILTED, dev=True)
    assert "c-interface" in steps


def test_nothing_of_one_environment_reaches_the_steps_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in environment.FOREIGN_VARIABLES:
        monkeypatch.setenv(name, str(environment.KILTED.venv))
    env = environment.child_environment(environment.JAZZY)
    assert not set(environment.FOREIGN_VARIABLES) & set(env)
    assert env["VIRTUAL_ENV"] == str(environment.JAZZY.venv)
    assert env["PATH"].split(os.pathsep)[0] == str(environment.JAZZY.venv / "bin")


@pytest.mark.parametrize("ros", environment.ENVIRONMENTS)
def test_pins_are_exact_and_hold_what_the_project_asks_for(ros: str) -> None:
    lines = (ROOT / environment.ENVIRONMENTS[ros].ros_file).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    names = [pin.partition("==")[0] for pin in pins]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert len(names) == len(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    generators = ros_build.GENERATORS[ros]
    wanted = {*project["optional-dependencies"][ros], *(f"ros-{ros}-{n}" for n in generators)}
    assert wanted <= set(names)
    others = [f"ros-{other}-" for other in environment.ENVIRONMENTS if other != ros]
    assert not [name for name in names if name.startswith(tuple(others))]


@pytest.mark.parametrize(
    ("told", "refused"),
    [
        ("2.13.0+cu130 13.0", ""),
        ("2.13.0+cpu None", r"got 2.13.0.cpu \(CUDA None\); install"),
        ("2.9.0 12.8", r"CUDA 13, got 2.9.0 \(CUDA 12.8\)"),
        ("", "got none"),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_is_refused(
    told: str, refused: str, target: environment.Environment
) -> None:
    python = Path(target.python)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{told}'\n")
    python.chmod(0o755)
    if refused:
        with pytest.raises(SystemExit, match=refused) as raised:
            environment.check_torch(target)
        assert "\n" not in str(raised.value)
    else:
        environment.check_torch(target)


def recipe(target: str) -> list[str]:
    """What make would run."""
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", target],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_gpu_check_runs_in_the_environment_that_it_sets_up() -> None:
    first, _, *ran = recipe("gpu-check")
    assert first.endswith("tools/environment.py --gpu")
    tools = ("-m pytest -q -m gpu test", "tools/check_gpu.py", "tools/soak.py")
    for tool, line in zip(tools, ran, strict=True):
        assert f'PATH="{ROOT}/.venv/bin:' in line and f" python {tool}" in line


def test_the_tests_run_on_kilted_and_on_jazzy_each_in_its_environment() -> None:
    ran = [
        line
        for target in ("test", "test-jazzy")
        for line in recipe(target)
        if any(each in line for each in ("environment.py", " -m pytest", "second_try.py"))
    ]
    kilted, plain, talking, timed, jazzy, part = ran
    assert kilted.endswith("tools/environment.py --dev")
    # Every test is in one of the three, and none in two.
    ignored = re.findall(r"--ignore=(\S+)", plain.rpartition(" python -m pytest")[2])
    assert " python -m pytest -q -n 2 " in plain and ignored
    # Those over DDS that failed get a second try, alone.
    parts = (
        (talking, "-n 4 --dist loadscope -m 'not timed'"),
        (timed, "-n 2 --dist loadscope -m timed"),
    )
    for line, apart in parts:
        tried = line.rpartition(" python ")[2]
        assert tried == f"tools/second_try.py {apart} {' '.join(ignored)}"
    assert all((ROOT / place).exists() for place in ignored)
    assert jazzy.endswith("tools/environment.py --ros jazzy --dev")
    assert " python -m pytest -q -m jazzy " in part
    here = [(line, ".venv") for line in (plain, talking, timed)]
    for line, venv in (*here, (part, ".venv-jazzy")):
        for value in (f'PATH="{ROOT}/{venv}/bin:', f'AMENT_PREFIX_PATH="{ROOT}/{venv}"'):
            assert value in line
