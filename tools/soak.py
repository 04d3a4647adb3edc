"""Many decisions on one GPU with new inputs every time; prints JSON, exit status 1 on a failure.

The true widths, so the kernels of a robot, at a depth cut so far that a replay takes about half a
millisecond. What must hold: no error; device memory, and the host's anonymous and shared memory,
end where they were after warm-up; the same input gives the same bits whenever it comes again; and
the driver is asked for copies, graph launches and times only, never for memory, captures or code.

    python tools/soak.py [--decisions 100000] [-o result.json]      # about two minutes on an H200
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import toolbox  # noqa: E402

from flashrt_core.bench import machine  # noqa: E402
from flashrt_core.bench.case import percentiles  # noqa: E402
from flashrt_core.load import LoadOptions, load  # noqa: E402
from flashrt_core.policies.base import Observation  # noqa: E402
from flashrt_core.session import Session  # noqa: E402

VIEW = "base_0_rgb"
#: Layers of the image tower, of the trunk with the expert, and steps.
DEPTHS = {"vision_depth": 2, "trunk_depth": 2, "expert_depth": 2}
STEPS = 2
VOCAB = 4096  # rows of the embedding table: the rest of them are never read
ALLOWED = {
    "cuGraphLaunch",
    "cuStreamSynchronize",
    "cuEventElapsedTime",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemGetInfo",  # asked by this program
}
_WARM_UP = 500
_MOST = 10_000_000  # decisions: some hours
_IMAGES = 61  # drawn beforehand; prime, so that they meet every phase of anything that repeats
_SLACK_BYTES = 2 << 20  # of the host's allocator


@dataclass
class Soak:
    """What was seen.

    Attributes:
        decisions: made after warm-up.
        host, device: bytes in use at each check, the first after warm-up.
        replay_ms: of every decision, on the GPU.
        repeats: times that the known input came again.
        different: of these, how often its bits were others.
        calls: driver calls by name, where the device counts them.
    """

    decisions: int = 0
    host: list[int] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    replay_ms: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0))
    repeats: int = 0
    different: int = 0
    calls: Counter[str] = field(default_factory=Counter)

    def failures(self) -> list[str]:
        """What did not hold, a line each."""
        found = []
        if self.different:
            found.append(f"{self.different} of {self.repeats} repeats: expected equal bits")
        if self.device and max(self.device) > self.device[0]:
            found.append(f"device memory: grew by {max(self.device) - self.device[0]} bytes")
        if self.host[-1] - self.host[0] > _SLACK_BYTES:
            found.append(f"host memory: grew by {self.host[-1] - self.host[0]} bytes")
        if unknown := set(self.calls) - ALLOWED:
            found.append(f"driver calls: expected only {sorted(ALLOWED)}, got {sorted(unknown)}")
        return found

    def to_json(self) -> dict[str, Any]:
        """As it goes into a result file."""
        return {
            "decisions": self.decisions,
            "replay_ms": percentiles(self.replay_ms)
            | {"max": round(float(self.replay_ms.max()), 4)},
            "host_bytes": self.host,
            "device_bytes": self.device,
            "repeats": self.repeats,
            "different": self.different,
            "driver_calls": dict(self.calls),
            "failures": self.failures(),
        }


def host_bytes() -> int:
    """Anonymous and shared memory of this process."""
    status = Path("/proc/self/status").read_text()
    kilobytes = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Rss"))
    return sum(int(kilobytes[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


def soak(session: Session, decisions: int, checks: int = 20) -> Soak:
    """Decides that often on inputs of which no two are equal, but for those that are compared."""
    draw = np.random.default_rng(0)
    side = session.contract.input(f"image.{VIEW}").shape[0]
    images = draw.integers(0, 256, (_IMAGES, side, side, 3), dtype=np.uint8)
    states = draw.uniform(-1.0, 1.0, (_IMAGES, 1)).astype(np.float32)
    noise = draw.standard_normal(session.contract.input("noise").shape, dtype=np.float32)

    def observe(index: int) -> Observation:
        place = index % _IMAGES
        return Observation({VIEW: images[place]}, states[place], stamp_ns=index)

    # A fresh draw of noise is part of every decision, so a picture that comes again meets another.
    session.set_prompt("pick up the cup")
    known = session.decide(observe(0), noise=noise).raw.copy()
    for index in range(_WARM_UP):
        session.decide(observe(index))
    driver = getattr(session.engine.device, "driver", None)
    result = Soak(replay_ms=np.ones(decisions))  # its pages are there before memory is measured
    calls = Counter() if driver is None else Counter(driver.calls)
    _check_memory(result, driver)
    every = max(1, decisions // checks)
    for index in range(1, decisions + 1):
        decision = session.decide(observe(index))
        result.replay_ms[index - 1] = sum(decision.stage_ms.values())
        result.decisions += 1
        if index % every == 0:
            again = session.decide(observe(0), noise=noise).raw
            result.repeats += 1
            result.different += not np.array_equal(known, again)
            _check_memory(result, driver)
    if driver is not None:
        result.calls = Counter(driver.calls) - calls
    return result


def _check_memory(result: Soak, driver: Any) -> None:
    result.host.append(host_bytes())
    if driver is not None:
        free, total = driver.call("cuMemGetInfo")
        result.device.append(total - free)


def open_session(preset: str, device: str, precision: str) -> Session:
    """A session of the true widths ("base"), or of the small preset, at the cut depth."""
    vocabulary = {"vocab": VOCAB} if preset == "base" else {}
    return load(
        LoadOptions(
            preset=preset,
            device=device,
            precision=precision,
            views=(VIEW,),
            state_dim=1,
            steps=STEPS,
            prompt_buckets=(48,),
            max_sessions=1,
            capsule_slots=0,
            extra={**DEPTHS, **vocabulary},
        )
    )


def main() -> int:
    """Command line; 0 when everything held."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("--decisions", type=toolbox.whole(1, _MOST), default=100_000)
    parser.add_output()
    options = parser.parse_args()
    toolbox.require_gpu("run it on a machine with a GPU: test/test_soak.py soaks the CPU device")
    session = open_session("base", "cuda", "bf16")
    try:
        began = time.monotonic()
        result = soak(session, options.decisions)
        seconds = time.monotonic() - began
        gpu = machine.gpu_state()
        library = session.engine.device.library
    finally:
        session.engine.close()
    report = result.to_json() | {
        "seconds": round(seconds, 1),
        "gpu": gpu,
        "versions": machine.versions(),
        "commit": machine.commit(),
        "kernel_library": library,
        "command": machine.command_line("python tools/soak.py"),
    }
    print(json.dumps(report, indent=1))
    toolbox.write_report(report, options.output)
    return 1 if result.failures() else 0


if __name__ == "__main__":
    toolbox.run(main, "soak")
