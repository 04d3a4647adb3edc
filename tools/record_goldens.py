"""Records what an official implementation gives for the cases of test/parity.

``lerobot`` and ``openpi`` run π0.5 (case.py), ``lerobot_groot`` GR00T N1.7 (groot.py).

Only outputs are stored (about 0.3 MB a file); weights and inputs come from the formulas in that
file. Nothing is fetched: networks are built from their configuration classes, and the text encoding
is the small SentencePiece model that ships with this package.

    python tools/record_goldens.py lerobot      # writes test/data/pi05_lerobot.npz
    python tools/record_goldens.py openpi       # writes test/data/pi05_openpi.npz
    python tools/record_goldens.py lerobot_groot  # writes test/data/groot_n17_lerobot.npz

Environments (each needs this package's torch, numpy and sentencepiece too):

* ``lerobot``: Python 3.12, ``lerobot==0.6.1`` (``--no-deps`` suffices), ``transformers==5.5.4``,
  ``tokenizers==0.22.2``, ``torch==2.11.0`` and what the import asks for.
* ``lerobot_groot``: the same with ``diffusers==0.36.0`` and ``dm-tree==0.1.10``.
* ``openpi``: Python 3.11, a checkout of openpi with its ``src`` and ``packages/openpi-client/src``
  on PYTHONPATH, ``transformers==4.53.2`` with openpi's replaced files copied over it, as its README
  says, ``jax==0.5.3``, ``flax==0.10.2``, ``orbax-checkpoint==0.11.13`` and ``numpy<2``.
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import hashlib
import importlib
import inspect
import json
import platform
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test"), str(ROOT / "tools")]

import toolbox  # noqa: E402
from parity import case as parity  # noqa: E402

from flashrt_core.outputs import whole_file  # noqa: E402
from flashrt_core.policies.pi05.config import make_config  # noqa: E402

Arrays = dict[str, np.ndarray[Any, Any]]


def decision(source: Any, case: parity.Case) -> Arrays:
    """Actions of one case, and what shows where a difference comes from.

    Stored: first velocity, condition of the first step, times, keys and values of some layers, text
    rows of the prefix.
    """
    sizes = make_config("base", **parity.SIZES)
    model = source.build(case, sizes).eval()
    if case.arithmetic == "rounded":
        model.to(torch.bfloat16).to(torch.float32)
    parity.load_weights(model)
    found: dict[str, Any] = {"times": []}
    denoise, prefix, suffix = model.denoise_step, model.embed_prefix, model.embed_suffix

    def denoise_step(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(denoise).bind(*args, **kwargs).arguments
        found["cache"] = list(given["past_key_values"])
        found["times"].append(given["timestep"][0].clone())
        velocity = denoise(*args, **kwargs)
        found.setdefault("velocity", velocity[0])
        return velocity

    def embed_prefix(*args: Any) -> Any:
        result = prefix(*args)
        found["prefix"] = result[0][0]
        return result

    def embed_suffix(*args: Any) -> Any:
        result = suffix(*args)
        found.setdefault("condition", result[3][0])
        return result

    model.denoise_step, model.embed_prefix = denoise_step, embed_prefix
    model.embed_suffix = embed_suffix
    inputs = parity.inputs(case, sizes.image_size)
    with torch.inference_mode():
        actions = source.sample(model, inputs)
    image_rows = len(parity.VIEWS) * sizes.view_tokens
    text = range(image_rows, image_rows + case.tokens)
    rows = [*range(case.views * sizes.view_tokens), *text]
    kept = {
        "keys": torch.stack([found["cache"][layer][0][0, 0, rows] for layer in parity.LAYERS]),
        "values": torch.stack([found["cache"][layer][1][0, 0, rows] for layer in parity.LAYERS]),
        "actions": actions[0],
        "velocity": found["velocity"],
        "condition": found["condition"],
        "times": torch.stack(found["times"]),
        "text": found["prefix"][list(text)],
    }
    return {f"{case.name}.{name}": value.float().numpy() for name, value in kept.items()}


def main() -> None:
    """Command line."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("source", choices=("lerobot", "openpi", "lerobot_groot"))
    parser.add_argument("-o", "--output", type=toolbox.writable, help="npz file")
    options = parser.parse_args()
    source = importlib.import_module(f"goldens_{options.source}")
    name = getattr(source, "OUTPUT", f"pi05_{options.source}")
    output = options.output or toolbox.writable(f"{ROOT}/test/data/{name}.npz")
    torch.set_num_threads(1)
    with toolbox.needing(f"goldens of {options.source}", "set up what this file's top names"):
        record(source, options.source, output)


def record(source: Any, name: str, output: Path) -> None:
    """Runs every case of an implementation and writes the file, whole or not at all."""
    arrays, texts = source.extras()
    decide = getattr(source, "decision", partial(decision, source))
    for case in getattr(source, "CASES", parity.CASES):
        arrays |= decide(case)
        actions = arrays[f"{case.name}.actions"]
        print(f"{case.name}: actions in {actions.min():.3f}..{actions.max():.3f}")
    about = {
        "source": name,
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{package: version(package) for package in source.PACKAGES},
        **getattr(source, "ABOUT", {}),
        "seed": parity.SEED,
        "sizes": getattr(source, "SIZES", parity.SIZES),
        "prompts": texts,
        "tokenizer": hashlib.sha256(source.TINY_TOKENIZER.read_bytes()).hexdigest(),
    }
    arrays["about"] = np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8)
    with whole_file("goldens", output) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    print(f"{output}: {output.stat().st_size} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    toolbox.run(main, "record_goldens")
