"""openpi's side of the golden data: its PyTorch network at narrow sizes, and its transforms.

Used by record_goldens.py, in an environment that has openpi.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from goldens_paligemma import narrow_vlm, with_values
from parity import case as parity

from flashrt_core.policies.pi05.config import Pi05Config, make_config

PACKAGES = ("transformers", "torch", "jax", "numpy")
ABOUT = {"openpi": "main of 2026-06-15, 15a9616a"}
TINY_TOKENIZER = (
    Path(__file__).resolve().parent.parent / "flashrt_core/policies/pi05/tiny_tokenizer.model"
)
Arrays = dict[str, np.ndarray[Any, Any]]


def build(case: parity.Case, sizes: Pi05Config) -> Any:
    """openpi's network at the sizes of the golden cases."""
    from openpi.models_pytorch import gemma_pytorch, pi0_pytorch

    parts = {"gemma_2b": sizes.trunk, "gemma_300m": sizes.expert}

    def gemma_config(variant: str) -> Any:
        part = parts[variant]
        return SimpleNamespace(
            width=part.width,
            depth=part.depth,
            mlp_dim=part.ffn,
            num_heads=part.heads,
            num_kv_heads=1,
            head_dim=part.head_dim,
        )

    vlm, expert = gemma_pytorch.PaliGemmaForConditionalGeneration, gemma_pytorch.GemmaForCausalLM
    narrow: dict[str, Any] = {
        "PaliGemmaForConditionalGeneration": lambda config: vlm(
            config=narrow_vlm(config, sizes, image_size=sizes.image_size)
        ),
        "GemmaForCausalLM": lambda config: expert(
            config=with_values(config, vocab_size=sizes.vocab)
        ),
    }
    config = SimpleNamespace(
        pi05=True,
        paligemma_variant="gemma_2b",
        action_expert_variant="gemma_300m",
        dtype="bfloat16" if case.arithmetic == "bfloat16" else "float32",
        action_dim=32,
        action_horizon=case.horizon,
        pytorch_compile_mode=None,
        steps=case.steps,
    )
    with (
        mock.patch.multiple(gemma_pytorch, **narrow),
        mock.patch.object(pi0_pytorch._gemma, "get_config", gemma_config),
    ):
        return pi0_pytorch.PI0Pytorch(config)


def sample(model: Any, inputs: parity.Inputs) -> torch.Tensor:
    """[1, H, 32] actions. Images have the network's size: openpi's own resize is passed by."""
    state = torch.zeros(1, 32)
    model._preprocess_observation = lambda *_, **__: (
        inputs.images,
        inputs.image_masks,
        inputs.tokens,
        inputs.token_mask,
        state,
    )
    actions: torch.Tensor = model.sample_actions(
        torch.device("cpu"),
        SimpleNamespace(state=state),
        noise=inputs.noise,
        num_steps=model.config.steps,
    )
    return actions


def extras() -> tuple[Arrays, list[str]]:
    """Everything but decisions; prompt texts are inside openpi's tokenizer and not seen."""
    arrays = prompts() | resized_images() | normalisation() | absolute_actions() | pipeline()
    return arrays, []


def make_tokenizer() -> Any:
    """openpi's tokenizer over the tiny SentencePiece model."""
    from openpi.models import tokenizer as module

    with mock.patch.object(module.download, "maybe_download", lambda *_, **__: TINY_TOKENIZER):
        return module.PaligemmaTokenizer(max_len=parity.PROMPT_LIMIT)


def norm_stats(part: str) -> Any:
    """openpi's statistics object of "state" or "action"."""
    from openpi.shared.normalize import NormStats

    known = parity.statistics(part)
    return NormStats(**{name: np.array(known[name]) for name in ("mean", "std", "q01", "q99")})


def pipeline() -> Arrays:
    """Robot actions from images, state and text, by openpi's transforms around its network.

    The transforms and their order are those of ``create_trained_policy`` for π0.5.
    """
    from openpi import transforms

    sizes = make_config("base", **parity.SIZES)
    model = build(parity.PIPELINE, sizes).eval()
    parity.load_weights(model)
    state, _ = parity.statistics_inputs()
    arrays: Arrays = {}
    for kind, small, mask in (
        ("plain", True, None),
        ("relative", True, transforms.make_bool_mask(6, -1, 1)),
        ("resized", False, None),
        ("state_not_read", True, None),
    ):
        before = (
            transforms.Normalize({"state": norm_stats("state")}, use_quantiles=True),
            transforms.ResizeImages(sizes.image_size, sizes.image_size),
            transforms.TokenizePrompt(
                make_tokenizer(), discrete_state_input=kind != "state_not_read"
            ),
            transforms.PadStatesAndActions(32),
        )
        after = (
            transforms.Unnormalize({"actions": norm_stats("action")}, use_quantiles=True),
            transforms.AbsoluteActions(mask),
        )
        data: Any = {
            "state": state[0].copy(),
            "image": dict(parity.pipeline_images(small)),
            "prompt": parity.PIPELINE_PROMPT,
        }
        for step in before:
            data = step(data)
        inputs = parity.as_inputs(
            data["image"],
            sizes.image_size,
            data["tokenized_prompt"].tolist(),
            data["tokenized_prompt_mask"],
            parity.noise(parity.PIPELINE),
        )
        with torch.inference_mode():
            actions = sample(model, inputs)[0].numpy()
        data = {"state": state[0], "actions": actions}
        for step in after:
            data = step(data)
        arrays[f"pipeline.{kind}"] = data["actions"][:, : parity.STATS_DIM]
    return arrays


def prompts() -> Arrays:
    """Token ids of openpi's tokenizer, both formats."""
    tokenizer = make_tokenizer()
    arrays: Arrays = {}
    for name, states in (("prompt", parity.states()), ("plain", [None])):
        pairs = [tokenizer.tokenize(text, state) for text in parity.PROMPTS for state in states]
        arrays[f"{name}.tokens"] = np.stack([tokens for tokens, _ in pairs]).astype(np.int32)
        arrays[f"{name}.mask"] = np.stack([mask for _, mask in pairs]).astype(bool)
    return arrays


def resized_images() -> Arrays:
    """openpi's client-side resize of uint8 images."""
    from openpi_client.image_tools import resize_with_pad

    side = parity.SIZES["image_size"]
    return {
        f"resize.{height}x{width}": resize_with_pad(
            parity.raw_image("resize", height, width), side, side
        )
        for height, width in parity.RAW_SIZES
    }


def normalisation() -> Arrays:
    """openpi's normalise and restore, in both modes."""
    from openpi import transforms

    state, actions = parity.statistics_inputs()
    arrays: Arrays = {}
    for mode, quantiles in (("QUANTILES", True), ("MEAN_STD", False)):
        forward = transforms.Normalize({"state": norm_stats("state")}, use_quantiles=quantiles)
        back = transforms.Unnormalize({"actions": norm_stats("action")}, use_quantiles=quantiles)
        arrays[f"normalise.{mode}"] = forward({"state": state})["state"]
        wide = np.concatenate([actions, actions[..., :3]], axis=-1)  # padding without statistics
        arrays[f"restore.{mode}"] = back({"actions": wide})["actions"]
    return arrays


def absolute_actions() -> Arrays:
    """openpi's delta actions brought back, with and without a joint that stays absolute."""
    from openpi import transforms

    state, actions = parity.statistics_inputs()
    arrays: Arrays = {}
    for name, mask in (
        ("all", transforms.make_bool_mask(8)),
        ("gripper", transforms.make_bool_mask(6, -1, 1)),
    ):
        step = transforms.AbsoluteActions(mask)
        done = step({"state": state[0].copy(), "actions": actions[0].copy()})
        arrays[f"absolute.{name}"] = done["actions"]
    return arrays
