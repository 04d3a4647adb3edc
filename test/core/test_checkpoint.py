"""The safetensors reader: what it returns, its digest, its progress, and the memory it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flashrt_core import safetensors_file
from flashrt_core.checkpoint import CheckpointWeights, SafetensorsFile, read_arrays
from flashrt_core.errors import OptionError, WeightsError
from flashrt_core.tensors import TensorSpec
from flashrt_core.weights import open_weights

TENSORS = {
    "a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "b": torch.full((5,), 0.5, dtype=torch.bfloat16),
    "c": torch.tensor(3.0, dtype=torch.float16),
    "d": torch.zeros(0, 4),
}
SPECS = {name: TensorSpec(tuple(tensor.shape)) for name, tensor in TENSORS.items()}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    return path


def test_tensors_come_as_written(file: Path) -> None:
    source = open_weights(str(file.parent), SPECS)
    assert sorted(source.names()) == sorted(TENSORS)
    for name in (*TENSORS, *TENSORS):  # again, after the pages were given back
        found = source.get(name)
        assert found.dtype == TENSORS[name].dtype
        assert torch.equal(found, TENSORS[name])
    kept = source.get("a")
    source.get("b")
    assert torch.equal(kept, TENSORS["a"])


def test_odd_offsets(tmp_path: Path) -> None:
    """A tensor may start at any byte: the format aligns only the header."""
    path = tmp_path / "model.safetensors"
    header = (
        b'{"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},'
        b'"y":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}}'
    )
    data = bytes(3) + torch.tensor([1.5, -2.0]).numpy().tobytes()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert SafetensorsFile(path).read("y").tolist() == [1.5, -2.0]


def test_digest_covers_every_byte_and_name(file: Path, tmp_path: Path) -> None:
    first = SafetensorsFile(file).digest()
    assert first == SafetensorsFile(file).digest()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    changed = tmp_path / "changed.safetensors"
    changed.write_bytes(bytes(content))
    renamed = tmp_path / "renamed.safetensors"
    save_file({f"{name}2": tensor for name, tensor in TENSORS.items()}, renamed)
    digests = {first, SafetensorsFile(changed).digest(), SafetensorsFile(renamed).digest()}
    assert len(digests) == 3


def test_digest_sees_the_order_of_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors_file, "_CHUNK", 16)
    monkeypatch.setattr(safetensors_file, "_READ", 8)
    digests = set()
    for name, order in (("x", (0, 1)), ("y", (1, 0))):
        path = tmp_path / name
        parts = [torch.full((4,), float(value)) for value in order]
        save_file({"t": torch.cat(parts)}, path)
        digests.add(SafetensorsFile(path).digest())
    assert len(digests) == 2


def test_progress_reaches_the_end(file: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    source = CheckpointWeights(file, SPECS, lambda *step: seen.append(step))
    assert source.digest
    for name in SPECS:
        source.get(name)
    hashed = [step for step in seen if step[0] == "hash"]
    packed = [step for step in seen if step[0] == "pack"]
    for steps in (hashed, packed):
        assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
        assert steps[-1][1] == steps[-1][2] > 0


def test_unknown_tensor(file: Path) -> None:
    with pytest.raises(WeightsError, match="'z'.*one of the 4 tensors"):
        open_weights(str(file), SPECS).get("z")


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("random:x", "random:<whole number>"),
        ("random:-1", "random:<whole number>"),
        (f"random:{2**64}", "below 2"),
        (f"outliers:{2**128}", "outliers:<whole number> below 2"),
        ("outliers:" + "9" * 5000, "below 2"),
        ("/no/such/folder", "no such path"),
    ],
)
def test_bad_uris(uri: str, said: str) -> None:
    with pytest.raises((OptionError, WeightsError), match=said):
        open_weights(uri, SPECS)


def test_other_layouts_are_named(tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    with pytest.raises(WeightsError, match=r"a JAX checkpoint; convert it"):
        open_weights(str(tmp_path), SPECS)


def write_shards(folder: Path) -> dict[str, str]:
    """The tensors in two files with a list; what the list says."""
    parts = {"model-1-of-2.safetensors": "ab", "model-2-of-2.safetensors": "cd"}
    for name, tensors in parts.items():
        save_file({each: TENSORS[each] for each in tensors}, folder / name)
    places = {tensor: name for name, tensors in parts.items() for tensor in tensors}
    listed = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(listed))
    return places


def test_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    write_shards(tmp_path)
    told: list[tuple[str, int, int]] = []
    source = open_weights(str(tmp_path), SPECS, lambda *progress: told.append(progress))
    for name in (*TENSORS, *TENSORS):
        assert torch.equal(source.get(name), TENSORS[name])
    digest = source.digest
    done = [at for what, at, _ in told if what == "hash"]
    assert done == sorted(done) and done[-1] <= told[-1][2] == sum(
        path.stat().st_size for path in tmp_path.glob("*.safetensors")
    )
    changed = dict(TENSORS, d=torch.zeros(0, 4), c=torch.tensor(4.0, dtype=torch.float16))
    save_file({name: changed[name] for name in "cd"}, tmp_path / "model-2-of-2.safetensors")
    assert open_weights(str(tmp_path), SPECS).digest != digest


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "a weight_map of tensors and files beside it"),
        ('{"weight_map": {"a": "../model-1-of-2.safetensors"}}', "a weight_map of tensors"),
        ('{"weight_map": {"a": 5}}', "a weight_map of tensors"),
        ('{"weight_map": {"a": "model-1-of-2.safetensors"}}', "the 1 tensors that .* differs is b"),
        ('{"weight_map": {"a": "model-3-of-2.safetensors"}}', "a readable safetensors file"),
    ],
)
def test_lists_that_are_none(content: str, said: str, tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(WeightsError, match=said) as raised:
        open_weights(str(tmp_path), SPECS)
    assert "\n" not in str(raised.value)


def written(path: Path, header: str) -> Path:
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    return path


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ('{"x":{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}}', "inf in shape of tensor"),
        ('{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,-Infinity]}}', "-inf in data_offsets"),
        ('{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', "nan in shape of tensor 'x'"),
        ('{"x":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}', "True in shape"),
        ('{"x":{"dtype":"F32","shape":[0,1%s],"data_offsets":[0,0]}}' % ("0" * 30), "in shape of"),
        ('{"x":{"dtype":"F32","shape":[0,1%s],"data_offsets":[0,0]}}' % ("0" * 9999), "header"),
        (
            f'{{"x":{{"dtype":"F32","shape":[0,{1 << 62},2],"data_offsets":[0,0]}}}}',
            "of tensor 'x'",
        ),
        ('{"x":{"dtype":["F32"],"shape":[],"data_offsets":[0,0]}}', "dtype .'F32'. of tensor 'x'"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "safetensors header"),
    ],
)
def test_headers_of_nonsense(tmp_path: Path, header: str, said: str) -> None:
    with pytest.raises(WeightsError, match=said) as caught:
        SafetensorsFile(written(tmp_path / "x", header))
    assert "copy it again" in str(caught.value) and "\n" not in str(caught.value)


def test_formats_to_convert(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    for wrong, name in ((torch.float64, "F64"), (torch.int8, "I8"), (torch.float8_e5m2, "F8_E5M2")):
        save_file(TENSORS | {"a": TENSORS["a"].to(wrong)}, path)
        with pytest.raises(WeightsError, match=f"a {name}; convert to F32, BF16 or F16"):
            open_weights(str(path), SPECS)
    header = '{"x":{"dtype":"F4","shape":[0],"data_offsets":[0,0]}}'
    with pytest.raises(WeightsError, match="tensor 'x' of .* got F4; convert to F32, BF16 or F16"):
        SafetensorsFile(written(path, header))


def test_git_lfs_pointer(tmp_path: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"
    (tmp_path / "model.safetensors").write_text(text)
    with pytest.raises(WeightsError, match="got a git-lfs pointer to it; run git lfs pull"):
        open_weights(tmp_path, SPECS)


def test_arrays_of_any_format(tmp_path: Path) -> None:
    kinds = (torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.float64, torch.int64)
    path = tmp_path / "stats.safetensors"
    save_file({str(kind): torch.tensor([1.5, -2.0]).to(kind) for kind in kinds}, path)
    found = read_arrays(path)
    assert {values.dtype for values in found.values()} == {np.dtype(np.float64)}
    for kind in kinds:
        assert found[str(kind)].tolist() == [1.5 if kind.is_floating_point else 1.0, -2.0]


_LOAD = """
import json
import sys
from pathlib import Path
import torch
from safetensors.torch import save_file
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.pi05.config import make_config
from flashrt_core.policies.pi05.weights import tensors

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

torch.set_num_threads(1)
sizes = dict(vision_width=256, vision_heads=4, vision_ffn=1024, trunk_width=768, trunk_heads=4,
             trunk_head_dim=64, trunk_ffn=3072, expert_width=384, expert_heads=4,
             expert_head_dim=64, expert_ffn=1024, vocab=32768)
path = Path(sys.argv[1]) / "model.safetensors"
if sys.argv[2] == "write":
    specs = tensors(make_config("base", **sizes))
    save_file({n: (torch.randn(s.shape) * s.std).bfloat16() for n, s in specs.items()}, path)
    span = {"q01": [-1.0] * 7, "q99": [1.0] * 7}
    text = json.dumps({"norm_stats": {"state": span, "actions": span}})
    path.with_name("norm_stats.json").write_text(text)
    sys.exit()
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
session = load(LoadOptions(preset="base", checkpoint=str(path), precision="bf16", extra=sizes,
                           tokenizer=Path(sys.argv[3]), max_sessions=1,
                           norm_stats=path.with_name("norm_stats.json"), capsule_slots=0,
                           prompt_buckets=(64,), threads=1))
buffers = sum(spec.nbytes for spec in session.contract.buffers)
print(path.stat().st_size, status("VmHWM") - before, buffers)
"""


@pytest.mark.slow
def test_memory_while_loading(tmp_path: Path) -> None:
    """Peak of host memory over the start, with everything that the CPU device then holds."""
    root = Path(__file__).parents[2]
    tokenizer = root / "flashrt_core/policies/pi05/tiny_tokenizer.model"

    def run(what: str) -> str:
        command = [sys.executable, "-c", _LOAD, str(tmp_path), what, str(tokenizer)]
        return subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True, timeout=110
        ).stdout

    run("write")
    size, peak, buffers = map(int, run("load").split())
    assert size > 200e6
    assert buffers > 0.8 * size  # the bf16 plan holds nearly all of it once more
    assert peak < 1.3 * size
