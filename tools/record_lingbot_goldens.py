"""Records what LeRobot's LingBot-VA gives for the episodes of test/parity/lingbot.py.

Only outputs are stored; weights and inputs come from the formulas in that file. Nothing is fetched.

    python tools/record_lingbot_goldens.py      # writes test/data/lingbot_va_lerobot.npz

Environment: Python 3.12 with ``lerobot==0.6.1`` (``--no-deps`` suffices), ``diffusers>=0.36``,
``transformers==5.5.4``, ``torch==2.11.0`` and what their import asks for.
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "test"), str(ROOT / "tools")]

import toolbox  # noqa: E402
from parity import lingbot as parity  # noqa: E402
from parity.groot import Formulas  # noqa: E402

from flashrt_core.bench.peer_lerobot_lingbot_va import encoder  # noqa: E402
from flashrt_core.outputs import whole_file  # noqa: E402
from flashrt_core.tensors import TensorSource  # noqa: E402

PACKAGES = ("lerobot", "transformers", "diffusers", "torch", "numpy")
Arrays = dict[str, np.ndarray[Any, Any]]


def build(
    case: parity.Case, source: TensorSource, dtype: str = "float32", place: str = "cpu"
) -> Any:
    """LeRobot's policy at our sizes, its weights ours.

    Args:
        case: the episode.
        source: weights.
        dtype: "float32" or "bfloat16", of the whole policy.
        place: "cpu" or "cuda".
    """
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.lingbot_va import modeling_lingbot_va as modeling
    from lerobot.policies.lingbot_va.configuration_lingbot_va import LingBotVAConfig

    ours = case.config
    cameras = [f"observation.images.camera{index}" for index in range(case.views)]
    config = LingBotVAConfig(
        device=place,
        dtype=dtype,
        obs_cam_keys=cameras,
        camera_layout="robotwin_tshape" if ours.tee else "width_concat",
        input_features={
            name: PolicyFeature(type=FeatureType.VISUAL, shape=(3, *parity.CAMERA))
            for name in cameras
        },
        num_attention_heads=ours.net.heads,
        attention_head_dim=ours.net.head_dim,
        ffn_dim=ours.net.ffn,
        num_layers=ours.net.depth,
        text_dim=ours.net.text,
        freq_dim=ours.net.time,
        attn_window=ours.window,
        height=ours.height,
        width=ours.width,
        frame_chunk_size=ours.frames,
        action_per_frame=ours.frame_rows,
        num_inference_steps=ours.steps,
        action_num_inference_steps=ours.action_steps,
        save_predicted_video=True,
    )
    policy = modeling.LingBotVAPolicy(config).to(place).eval()
    vaes = [
        encoder(ours.vae, decoder=4).eval().to(place, policy.dtype) for _ in range(1 + ours.tee)
    ]
    load_weights(policy.transformer, "transformer.", source)
    for vae in vaes:
        load_weights(vae.encoder, "vae.encoder.", source)
        load_weights(vae.quant_conv, "vae.quant_conv.", source)
    names = ("streaming_vae", "streaming_vae_half")
    streams = {
        name: modeling.WanVAEStreamingWrapper(vae) for name, vae in zip(names, vaes, strict=False)
    }
    policy._frozen = {"vae": vaes[0], **streams}
    policy.reset()
    return policy


def load_weights(model: Any, prefix: str, source: TensorSource) -> None:
    """Our tensors into every parameter."""
    known = {name for name in source.names() if name.startswith(prefix)}
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            parameter.copy_(source.get(prefix + name))
        known.discard(prefix + name)
    if known:
        raise RuntimeError(f"LeRobot's network lacks {sorted(known)[:3]}")


def episode(case: parity.Case, policy: Any) -> Arrays:
    """Every chunk: actions [H, A], latents, and the pool's rows behind it."""
    found: Arrays = {}
    config, cameras = case.config, policy.config.obs_cam_keys
    policy._prompt_embeds, policy._negative_prompt_embeds = (
        torch.from_numpy(np.pad(each, ((0, config.prompt_rows - len(each)), (0, 0))))[None].to(
            policy.config.device
        )
        for each in parity.prompts(case)
    )
    for chunk in range(case.chunks):
        seen = [torch.from_numpy(video).permute(0, 3, 1, 2) for video in parity.frames(case, chunk)]
        raw = [
            {
                key: video[index : index + 1].float() / 255.0
                for key, video in zip(cameras, seen, strict=True)
            }
            for index in range(len(seen[0]))
        ]
        latents, actions = map(torch.from_numpy, parity.noise(case, chunk))
        drawn = iter((latents[None], actions[None, ..., None]))
        policy._obs_buffer = raw if chunk else []

        def noise(*_sizes: Any, given: Any = drawn, **options: Any) -> torch.Tensor:
            value: torch.Tensor = next(given)
            return value.clone().to(options["device"], options["dtype"])

        with mock.patch.object(torch, "randn", noise):
            policy.predict_action_chunk(raw[0] if chunk == 0 else None)
        made = policy._executed_actions[0, ..., 0].flatten(1).T.float().cpu().numpy().copy()
        pool = policy.transformer.blocks[-1].attn1.attn_caches["pos"]
        rows = torch.where(pool["mask"], pool["id"], -1)
        name = f"{case.name}.{chunk}"
        found[f"{name}.actions"] = made
        found[f"{name}.latents"] = policy.last_predicted_latents[0].float().numpy()
        found[f"{name}.ids"] = rows.cpu().numpy().astype(np.int32)
        found[f"{name}.predicted"] = (pool["is_pred"] & pool["mask"]).cpu().numpy()
        done = torch.from_numpy(parity.executed(case, chunk, made))
        whole = done.T.unflatten(1, (config.frames, config.frame_rows))
        policy._executed_actions = whole[None, ..., None]
    return found


def text() -> Arrays:
    """Rows of the text encoder."""
    from transformers import UMT5Config, UMT5EncoderModel

    from flashrt_core.policies.lingbot_va.text_encoder import tensors

    sizes = parity.CASES[0].config
    part = sizes.text
    config = UMT5Config(
        vocab_size=part.vocab,
        d_model=sizes.net.text,
        d_kv=part.head_dim,
        d_ff=part.ffn,
        num_layers=part.depth,
        num_heads=part.heads,
        relative_attention_num_buckets=part.distances,
        relative_attention_max_distance=part.furthest,
        feed_forward_proj="gated-gelu",
        is_gated_act=True,
        dense_act_fn="gelu_new",
        tie_word_embeddings=False,
    )
    model = UMT5EncoderModel(config).eval()
    load_weights(model, "text_encoder.", Formulas(tensors(sizes)))
    ids = torch.tensor([parity.IDS])
    with torch.inference_mode():
        return {"text.rows": model(ids).last_hidden_state[0].numpy()}


def main() -> None:
    """Command line."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("-o", "--output", type=toolbox.writable, help="npz file")
    options = parser.parse_args()
    output = options.output or toolbox.writable(f"{ROOT}/test/data/lingbot_va_lerobot.npz")
    torch.set_num_threads(1)
    arrays: Any
    with toolbox.needing("goldens of LingBot-VA", "set up what this file's top names"):
        arrays = text()
        for case in parity.CASES:
            arrays |= episode(case, build(case, parity.source(case)))
            print(case.name, np.abs(arrays[f"{case.name}.{case.chunks - 1}.actions"]).max())
    about = {
        "source": "lerobot",
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{package: version(package) for package in PACKAGES},
    }
    arrays["about"] = np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8)
    with whole_file("goldens", output) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)
    print(f"{output}: {output.stat().st_size} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    toolbox.run(main, "record_lingbot_goldens")
