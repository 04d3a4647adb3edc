"""The CUDA kernels under NVIDIA's compute-sanitizer; prints JSON, exit status 1 where one fails.

memcheck finds reads and writes outside of what was allocated, racecheck hazards in shared memory,
initcheck reads of memory that nobody wrote. Each runs the op tests below in a process of its own:
every kernel at a small or odd shape, and both attention kernels over a real prefix. Needs a GPU,
compute-sanitizer (of the CUDA toolkit) and pytest. About a minute a tool on an H200.

    python tools/check_gpu.py [--tool memcheck --tool racecheck] [-o result.json]
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import toolbox  # noqa: E402

from flashrt_core.bench import machine  # noqa: E402

FILES = (
    "test/kernels/test_cuda_ops.py",
    "test/kernels/test_cuda_guidance.py",
    "test/kernels/test_cuda_images.py",
    "test/kernels/test_cuda_low_bit.py",
    "test/kernels/test_cuda_widened.py",
    "test/kernels/test_cuda_few_rows.py",
    "test/kernels/test_cuda_few_rows_attention.py",
)
#: Beginnings of test ids. Each must select something, so that none is forgotten when tests move.
PICKED = (
    "test_rms_norm[7-1024",
    "test_layer_norm[5-8",
    "test_layer_norm[2-8192",
    "test_qkv_rope_kv[13-4-32]",
    "test_image_patches[56]",
    "test_image_patches_of_raw_bytes[small-56",
    "test_attention_in_segments[1-16-72]",
    "test_attention_over_a_prefix[304-304",
    "test_attention_over_a_prefix[15-583",
    "test_attention_over_a_prefix[50-1018",
    "test_attention_over_a_prefix[1-65",
    "test_attention_over_a_prefix[48-48",
    "test_linear_adds_a_table_to_every_run",
    "test_glu_linear[33-512-192]",
    "test_glu_linear[10-160-64]",
    "test_fused_geglu_tiles[191",
    "test_prompt_rows",
    "test_expert_ops[10]",
    "test_expert_ops[15]",
    "test_expert_ops[50]",
    "test_expert_ops[62]",
    "test_expert_ops[64]",
    "test_guided_step[10-32]",
    "test_guided_step[3-7]",
    "test_ends_of_a_step[10]",
    "test_norms_into_e4m3[3-8",
    "test_attention_in_segments_into_e4m3[1]",
    "test_attention_over_a_prefix_into_e4m3[10-570",
    "test_attention_over_a_prefix_into_e4m3[48-48",
    "test_fp8_product_into_a_stream[10-64",
    "test_fp8_product_into_e4m3[33-64",
    "test_fp8_geglu[33-512-256",
    "test_fp8_geglu[10-160-64",
    "test_fused_fp8_geglu_tiles[191",
    "test_expert_ops_with_int8_weights[10]",
    "test_expert_ops_with_int8_weights[15]",
    "test_expert_ops_with_int8_weights[50]",
    "test_expert_ops_with_int8_weights[62]",
    "test_layer_norm_without_gain[3-8",
    "test_layer_norm_into_a_float32_stream",
    "test_normalised_heads[5-3-1-64]",
    "test_grouped_patches[64]",
    "test_attention_of_views[1]",
    "test_rows_turn_and_attend[512-3-3-64",
    "test_attention_of_many_heads[36-36",
    "test_attention_of_many_heads[17-5",
    "test_causal_attention[16-8-128-17]",
    "test_causal_attention[4-2-32-17]",
    "test_keys_beyond_a_length_are_not_read[41-32",
    "test_fused_silu_tiles[191",
    "test_additions_and_narrowing_copies",
    "test_entry_of_wide_actions[97-64",
    "test_end_of_a_step_without_a_norm[9-3072",
    "test_norm_in_front_of_few_rows[41-96-1536",
    "test_norm_in_front_of_few_rows[41-1024-1536",
    "test_few_rows_into_the_stream[41-96-6144",
    "test_few_rows_into_the_stream[40-1024-1536",
    "test_few_rows_with_int8_weights[41-128",
    "test_queries_behind_a_norm_attend[13-5-2",
    "test_rows_behind_a_norm_attend_to_each_other[17-2",
    "test_attention_behind_a_norm_in_e4m3[17-0-2",
    "test_causal_rows_turn_and_attend[4-1-17-",
)
#: Of these, what racecheck does not run: it looks at shared memory, where cuBLASLt's kernels work
#: and ours do not, and under it those do not come to their end.
NOT_RACED = (
    "test_linear_adds_a_table_to_every_run",
    "test_glu_linear[33-512-192]",
    "test_glu_linear[10-160-64]",
)
TOOLS = ("memcheck", "racecheck", "initcheck")
#: Kernels of which racecheck may warn, and why. A warning is no error of the tool: it says that a
#: hazard may be intended. One thread sets up an mbarrier and arrives at it; the compiler issues the
#: set-up once for the warp, and the tool takes every lane of it for a writer.
WARNED = re.compile(r"_(cluster|sm90)$")
_SUMMARY = re.compile(r"=+ ERROR SUMMARY: (\d+)|=+ RACECHECK SUMMARY: [^\n]*\((\d+) error")
_WARNING = re.compile(r"Warning: Race reported between \w+ access at (\w+)\+")
_FRAME = re.compile(r"^=+ +(Host Frame|Saved host backtrace).*\n", re.MULTILINE)
_PASSED = re.compile(r"(\d+) passed")
_KEPT = 4000  # characters of the output of a run that failed


@dataclass(frozen=True)
class Finding:
    """What one tool said.

    Attributes:
        tool: of compute-sanitizer.
        tests: that passed.
        errors: that it counts; None where the tool did not come to its end.
        warned: kernels that racecheck warns of.
        seconds: that it took.
        clean: whether every test passed without an error or an unknown warning.
        output: what it printed first, where it is not clean.
    """

    tool: str
    tests: int
    errors: int | None
    warned: tuple[str, ...]
    seconds: float
    clean: bool
    output: str = ""


def select(collected: list[str], picked: tuple[str, ...] = PICKED) -> list[str]:
    """The test ids that begin with one of ``picked``; ToolError where one selects nothing."""
    names = {name: name.partition("::")[2] for name in collected}
    for beginning in picked:
        if not any(name.startswith(beginning) for name in names.values()):
            raise toolbox.ToolError(
                f"no test begins with {beginning!r}", remedy="see PICKED in tools/check_gpu.py"
            )
    return [name for name, short in names.items() if short.startswith(picked)]


def picked(tool: str) -> tuple[str, ...]:
    """Beginnings of the test ids that a tool runs."""
    return tuple(one for one in PICKED if tool != "racecheck" or one not in NOT_RACED)


def read_output(tool: str, output: str, code: int, expected: int, seconds: float) -> Finding:
    """Judges the output and exit status of a run of ``expected`` tests."""
    summaries = [int(one or other) for one, other in _SUMMARY.findall(output)]
    warned = tuple(sorted(set(_WARNING.findall(output))))
    passed = sum(int(count) for count in _PASSED.findall(output))
    errors = sum(summaries) if summaries else None
    known = all(WARNED.search(kernel) for kernel in warned)
    # The tool's own status counts warnings too, so the tests' status is in the number that passed.
    clean = errors == 0 and passed == expected and known and (code == 0 or bool(warned))
    said = "" if clean else _FRAME.sub("", output)[:_KEPT]
    return Finding(tool, passed, errors, warned, round(seconds, 1), clean, said)


def collect() -> list[str]:
    """Ids of all op tests; ToolError where pytest is missing or does not come to its end."""
    toolbox.require_packages(("pytest",), "make setup-gpu, or pip install pytest pytest-timeout")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *FILES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        told = next((line for line in said if line.startswith("E ")), said[-1] if said else "")
        raise toolbox.ToolError(
            "collecting the op tests",
            expected="pytest to end with 0",
            got=f"{done.returncode}: {told}",
            remedy=f"python -m pytest --collect-only {FILES[0]}",
        )
    return [line for line in done.stdout.splitlines() if line.startswith(FILES)]


def run(tool: str, sanitizer: str, tests: list[str], timeout: float) -> Finding:
    """The tests under one tool."""
    # The bindings ask the driver for functions that only newer ones have, which would count as API
    # errors; our own calls are checked where they are made.
    quiet = ["--report-api-errors", "no"] if tool == "memcheck" else []
    command = [sanitizer, "--tool", tool, *quiet, "--error-exitcode", "9"]
    command += [sys.executable, "-m", "pytest", "-q", "-o", "timeout=0", "-p", "no:cacheprovider"]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",  # every tensor is an allocation with its bounds
            "XDG_CACHE_HOME": cache,  # algorithms that were timed under the tool are not kept
        }
        process = subprocess.Popen(
            [*command, *tests],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output = process.communicate()[0] + f"\nended after {timeout:.0f} s"
        finally:
            # The tests are children of the tool: without it they would go on, on the GPU too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    code = process.returncode
    return read_output(tool, output, code, len(tests), time.monotonic() - began)


def find_sanitizer() -> str:
    """compute-sanitizer from PATH or the toolkit's folder; ToolError where there is none."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    for place in ("compute-sanitizer", str(home / "bin" / "compute-sanitizer")):
        if found := shutil.which(place):
            return found
    raise toolbox.ToolError(
        "compute-sanitizer",
        expected="on PATH or under CUDA_HOME",
        got="none",
        remedy="install CUDA's toolkit, or set CUDA_HOME to it",
    )


def main() -> int:
    """Command line; 0 when every tool came to its end without a finding."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("--tool", action="append", choices=TOOLS, help="default: the first two")
    parser.add_argument("--pick", action="append", help="beginnings of test ids, instead of ours")
    parser.add_argument("--timeout", type=toolbox.seconds, default=300.0, help="seconds a tool")
    parser.add_output()
    options = parser.parse_args()
    toolbox.require_gpu("run it on a machine with a GPU")
    sanitizer = find_sanitizer()
    collected, findings = collect(), []
    tests = select(collected, tuple(options.pick or PICKED))
    for tool in options.tool or TOOLS[:2]:
        chosen = tests if options.pick else select(collected, picked(tool))
        findings.append(run(tool, sanitizer, chosen, options.timeout))
        one = findings[-1]
        print(f"{tool}: {one.tests} of {len(chosen)} tests, {one.errors} errors, {one.seconds} s")
        print("".join(f"  warned of {kernel}\n" for kernel in one.warned), end="")
        print(one.output, end="", flush=True)
    report = {
        "tests": tests,
        "findings": [asdict(finding) for finding in findings],
        "gpu": machine.gpu_state(),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "command": machine.command_line("python tools/check_gpu.py"),
    }
    toolbox.write_report(report, options.output)
    return 0 if all(finding.clean for finding in findings) else 1


if __name__ == "__main__":
    toolbox.run(main, "check_gpu")
