"""LeRobot's side of the golden data: its network at narrow sizes, and its processor steps.

Used by record_goldens.py, in an environment that has LeRobot.
"""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from goldens_paligemma import narrow_vlm, with_values
from parity import case as parity

from flashrt_core.policies.pi05.config import Pi05Config, make_config

PACKAGES = ("lerobot", "transformers", "tokenizers", "torch", "numpy")
TINY_TOKENIZER = (
    Path(__file__).resolve().parent.parent / "flashrt_core/policies/pi05/tiny_tokenizer.model"
)
Arrays = dict[str, np.ndarray[Any, Any]]


def build(case: parity.Case, sizes: Pi05Config) -> Any:
    """LeRobot's network at the sizes of the golden cases."""
    from lerobot.policies.pi05 import modeling_pi05

    with narrow(sizes):
        return modeling_pi05.PI05Pytorch(configuration(case, sizes))


def configuration(case: parity.Case, sizes: Pi05Config, **values: Any) -> Any:
    """LeRobot's configuration of a case."""
    from lerobot.policies.pi05.configuration_pi05 import PI05Config

    return PI05Config(
        dtype="bfloat16" if case.arithmetic == "bfloat16" else "float32",
        chunk_size=case.horizon,
        n_action_steps=case.horizon,
        num_inference_steps=case.steps,
        image_resolution=(sizes.image_size, sizes.image_size),
        device="cpu",
        **values,
    )


def narrow(sizes: Pi05Config) -> Any:
    """LeRobot's module with our sizes where its own are fixed in the code."""
    from lerobot.policies.pi05 import modeling_pi05

    gemma = modeling_pi05.GemmaConfig
    variants = {
        "gemma_2b": (sizes.trunk, gemma),
        "gemma_300m": (sizes.expert, gemma),
    }

    def gemma_config(variant: str) -> Any:
        part, kind = variants[variant]
        return kind(part.width, part.depth, part.ffn, part.heads, 1, part.head_dim)

    vlm = modeling_pi05.PaliGemmaForConditionalGenerationWithPiGemma
    expert = modeling_pi05.PiGemmaForCausalLM
    patches: dict[str, Any] = {
        "get_gemma_config": gemma_config,
        "PaliGemmaForConditionalGenerationWithPiGemma": lambda config: vlm(
            config=narrow_vlm(config, sizes)
        ),
        "PiGemmaForCausalLM": lambda config: expert(
            config=with_values(config, vocab_size=sizes.vocab)
        ),
    }
    return mock.patch.multiple(modeling_pi05, **patches)


def sample(model: Any, inputs: parity.Inputs) -> torch.Tensor:
    """[1, H, 32] actions."""
    actions: torch.Tensor = model.sample_actions(
        inputs.images, inputs.image_masks, inputs.tokens, inputs.token_mask, noise=inputs.noise
    )
    return actions


def extras() -> tuple[Arrays, list[str]]:
    """Everything but decisions, and the prompt texts."""
    arrays, texts = prompts()
    arrays |= pipeline() | time_grids() | resized_images() | normalisation() | relative_actions()
    return arrays, texts


def time_grids() -> Arrays:
    """The times LeRobot's sampler asks the network at, for several step counts."""
    from lerobot.policies.common.flow_matching import euler_integrate
    from lerobot.policies.common.vla_utils import create_sinusoidal_pos_embedding

    arrays: Arrays = {}
    for steps in parity.GRIDS:
        times: list[torch.Tensor] = []

        def velocity(x: torch.Tensor, time: torch.Tensor, seen: Any = times) -> torch.Tensor:
            seen.append(time[0].clone())
            return torch.zeros_like(x)

        euler_integrate(velocity, torch.zeros(1, 1, 1), steps)
        grid = torch.stack(times)
        arrays[f"times.{steps}"] = grid.numpy()
        embedding = create_sinusoidal_pos_embedding(grid, 64, 4e-3, 4.0, torch.device("cpu"))
        arrays[f"time_embedding.{steps}"] = embedding.float().numpy()
    return arrays


def resized_images() -> Arrays:
    """LeRobot's resize of float images in [0, 1]; stored in units of one grey level."""
    from lerobot.policies.common.vla_utils import resize_with_pad_torch

    arrays: Arrays = {}
    side = parity.SIZES["image_size"]
    for height, width in parity.RAW_SIZES:
        image = torch.from_numpy(parity.raw_image("resize", height, width))[None].float() / 255.0
        small = (
            image if (height, width) == (side, side) else resize_with_pad_torch(image, side, side)
        )
        arrays[f"resize.{height}x{width}"] = (small[0] * 255.0).numpy().astype(np.float16)
    return arrays


def normalisation() -> Arrays:
    """LeRobot's normalise and restore, in the modes that π0.5 checkpoints use."""
    from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
    from lerobot.lerobot_types import TransitionKey
    from lerobot.processor import NormalizerProcessorStep, UnnormalizerProcessorStep

    arrays: Arrays = {}
    stats = {
        "observation.state": parity.statistics("state"),
        "action": parity.statistics("action"),
    }
    features = {
        "observation.state": PolicyFeature(FeatureType.STATE, (parity.STATS_DIM,)),
        "action": PolicyFeature(FeatureType.ACTION, (parity.STATS_DIM,)),
    }
    state, action = parity.statistics_inputs()
    for mode in ("QUANTILES", "MEAN_STD", "MIN_MAX"):
        kind = NormalizationMode[mode]
        map_ = {FeatureType.STATE: kind, FeatureType.ACTION: kind}
        forward = NormalizerProcessorStep(features=features, norm_map=map_, stats=stats)
        back = UnnormalizerProcessorStep(features=features, norm_map=map_, stats=stats)
        done = forward({TransitionKey.OBSERVATION: {"observation.state": torch.from_numpy(state)}})
        normal = done[TransitionKey.OBSERVATION]["observation.state"]
        arrays[f"normalise.{mode}"] = normal.numpy()
        done = back({TransitionKey.ACTION: torch.from_numpy(action)})
        arrays[f"restore.{mode}"] = done[TransitionKey.ACTION].numpy()
    return arrays


def relative_actions() -> Arrays:
    """LeRobot's relative actions brought back, with and without an excluded joint."""
    from lerobot.processor.relative_action_processor import (
        RelativeActionsProcessorStep,
        to_absolute_actions,
    )

    state, action = (torch.from_numpy(values) for values in parity.statistics_inputs())
    arrays: Arrays = {}
    for name, excluded in (("all", []), ("gripper", ["gripper"])):
        step = RelativeActionsProcessorStep(
            enabled=True, exclude_joints=excluded, action_names=list(parity.ACTION_NAMES)
        )
        mask = step._build_mask(action.shape[-1])
        arrays[f"absolute.{name}"] = to_absolute_actions(action, state, mask).numpy()
    return arrays


def tokenizer() -> Any:
    """The tiny SentencePiece model in the class that PaliGemma's tokenizer loads as."""
    from transformers import GemmaTokenizer

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.model").write_bytes(TINY_TOKENIZER.read_bytes())
        names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
        pieces = {f"{name}_token": piece for name, piece in names.items()}
        return GemmaTokenizer.from_pretrained(folder, add_bos_token=True, **pieces)


def pipeline() -> Arrays:
    """Robot actions from images, state and text, by LeRobot's policy and its own processors."""
    from lerobot.configs import FeatureType, PolicyFeature
    from lerobot.policies.pi05 import modeling_pi05, processor_pi05

    sizes = make_config("base", **parity.SIZES)
    names = ("image", "image2")
    inputs = {
        f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, 256, 256))
        for name in names
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (parity.STATS_DIM,))
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (parity.STATS_DIM,))}
    stats = {
        feature: {name: torch.tensor(values) for name, values in parity.statistics(part).items()}
        for feature, part in (("observation.state", "state"), ("action", "action"))
    }
    encode = processor_pi05.TokenizerProcessorStep

    def with_tiny(tokenizer_name: str, **values: Any) -> Any:
        return encode(tokenizer=tokenizer(), **values)

    state, _ = parity.statistics_inputs()
    noise = torch.from_numpy(parity.noise(parity.PIPELINE))[None]
    arrays: Arrays = {}
    for kind, small, relative in (
        ("plain", True, False),
        ("relative", True, True),
        ("resized", False, False),
    ):
        config = configuration(
            parity.PIPELINE,
            sizes,
            use_relative_actions=relative,
            action_feature_names=list(parity.ACTION_NAMES),
            input_features=dict(inputs),
            output_features=dict(outputs),
        )
        with narrow(sizes):
            policy = modeling_pi05.PI05Policy(config)
        parity.load_weights(policy.model)
        with mock.patch.object(processor_pi05, "TokenizerProcessorStep", with_tiny):
            before, after = processor_pi05.make_pi05_pre_post_processors(config, stats)
        shown = parity.pipeline_images(small).values()
        batch = before(
            {
                **{
                    f"observation.images.{name}": torch.from_numpy(image).permute(2, 0, 1) / 255.0
                    for name, image in zip(names, shown, strict=True)
                },
                "observation.state": torch.from_numpy(state[0]),
                "task": parity.PIPELINE_PROMPT,
            }
        )
        actions = policy.predict_action_chunk(batch, noise=noise)
        arrays[f"pipeline.{kind}"] = after(actions)[0].numpy()
    return arrays


def prompts() -> tuple[Arrays, list[str]]:
    """Prompt texts and token ids of LeRobot's processor steps over the tiny SentencePiece model."""
    from lerobot.lerobot_types import TransitionKey
    from lerobot.policies.common.vla_utils import pad_vector
    from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep
    from lerobot.processor import TokenizerProcessorStep
    from lerobot.utils.constants import OBS_LANGUAGE_ATTENTION_MASK, OBS_LANGUAGE_TOKENS

    write = Pi05PrepareStateTokenizerProcessorStep()
    encode = TokenizerProcessorStep(
        tokenizer=tokenizer(),
        max_length=parity.PROMPT_LIMIT,
        padding_side="right",
        padding="max_length",
    )
    texts: list[str] = []
    arrays: Arrays = {}
    for kind, widen in (
        ("prompt", lambda state: state),
        # Release 0.4.4 pads inside its step; 0.6.1 has the same function but no longer calls it.
        ("padded", lambda state: pad_vector(state, write.max_state_dim)),
    ):
        rows, masks = [], []
        for prompt, state in product(parity.PROMPTS, parity.states()):
            transition: Any = {
                TransitionKey.OBSERVATION: {
                    "observation.state": widen(torch.from_numpy(state)[None])
                },
                TransitionKey.COMPLEMENTARY_DATA: {"task": [prompt]},
            }
            written = write(transition)
            done = encode(written)
            if kind == "prompt":
                texts.append(written[TransitionKey.COMPLEMENTARY_DATA]["task"][0])
            observation = done[TransitionKey.OBSERVATION]
            rows.append(observation[OBS_LANGUAGE_TOKENS][0].numpy())
            masks.append(observation[OBS_LANGUAGE_ATTENTION_MASK][0].numpy())
        arrays[f"{kind}.tokens"] = np.stack(rows).astype(np.int32)
        arrays[f"{kind}.mask"] = np.stack(masks).astype(bool)
    return arrays, texts
