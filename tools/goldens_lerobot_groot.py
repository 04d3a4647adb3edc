"""LeRobot's side of the golden data of GR00T N1.7: its network at narrow sizes.

Used by record_goldens.py, in an environment that has LeRobot and diffusers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from parity import groot as parity

from flashrt_core.policies.groot_n17.config import GrootConfig
from flashrt_core.tensors import TensorSource

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lerobot", "transformers", "diffusers", "torch", "numpy")
SIZES, CASES, OUTPUT = parity.SIZES, parity.CASES, "groot_n17_lerobot"
TINY_TOKENIZER = ROOT / "flashrt_core/policies/groot_n17/tiny_tokenizer.json"
Arrays = dict[str, np.ndarray[Any, Any]]


def extras() -> tuple[Arrays, list[str]]:
    """Everything but decisions, and the instructions as the processor's steps clean them."""
    from lerobot.policies.groot.utils import prepare_n1_7_language_batch

    texts = [
        prepare_n1_7_language_batch(text, 1, formalize_language=True)[0] for text in parity.PROMPTS
    ]
    return {**squares(), **numbers(), **tokens(texts)}, texts


def squares() -> Arrays:
    """Both ways that LeRobot makes the network's picture of a camera's."""
    from lerobot.policies.groot import processor_groot

    side, found = SIZES["image_size"], {}
    framing = {
        "image_crop_size": None,
        "image_target_size": [side, side],
        "shortest_image_edge": parity.EDGE,
        "crop_fraction": parity.FRACTION,
    }
    for height, width in parity.RAW_SIZES:
        image = parity.raw_image("groot", height, width)
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        for boxed in (False, True) if height > width else (False,):
            made = processor_groot._transform_n1_7_image_for_vlm_torch(
                tensor, **framing, letter_box_transform=boxed
            )
            found[f"bicubic.{height}x{width}.{boxed}"] = made.permute(1, 2, 0).numpy()
        if height == width:
            # It ends at its edge, which is the network's size in official processors.
            same = {**framing, "shortest_image_edge": side}
            found[f"area.{height}x{width}"] = (
                processor_groot._transform_n1_7_image_for_vlm_albumentations(image, **same)
            )
    return found


def numbers() -> Arrays:
    """A state and actions through the steps of the groups' processors."""
    from lerobot.lerobot_types import TransitionKey
    from lerobot.policies.groot import processor_groot
    from lerobot.policies.groot.utils import flatten_n1_7_modality_stats

    found: Arrays = {}
    for percentiles in (False, True):
        flags = {"use_percentiles": percentiles, "use_relative_action": True}
        stats = {
            key: flatten_n1_7_modality_stats(
                embodiment_stats=parity.STATISTICS,
                embodiment_config=parity.MODALITY,
                modality=part,
                **flags,
            )
            for key, part in (("observation.state", "state"), ("action", "action"))
        }
        pack = processor_groot.GrootN17PackInputsStep(
            embodiment_tag="new_embodiment",
            stats=stats,
            normalize_min_max=True,
            raw_stats=parity.STATISTICS,
            modality_config=parity.MODALITY,
        )
        decode = processor_groot.GrootN17ActionDecodeStep(
            raw_stats=parity.STATISTICS,
            modality_config=parity.MODALITY,
            pack_step=pack,
            **flags,
        )
        state, raw = parity.robot_state(), parity.raw_actions()
        done = pack(
            {TransitionKey.OBSERVATION: {"observation.state": torch.from_numpy(state)[None]}}
        )
        found[f"state.{percentiles}"] = done[TransitionKey.OBSERVATION]["state"][0].numpy()
        done = decode({TransitionKey.ACTION: torch.from_numpy(raw)[None]})
        found[f"decoded.{percentiles}"] = done[TransitionKey.ACTION][0].numpy()
    return found


def tokens(texts: list[str]) -> Arrays:
    """Ids of whole chats in the small encoding, by Hugging Face's library."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    content = json.loads(TINY_TOKENIZER.read_text())
    merges = [tuple(merge) for merge in content["model"]["merges"]]
    encoder = Tokenizer(models.BPE(content["model"]["vocab"], merges))
    encoder.normalizer = normalizers.NFC()
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    encoder.add_special_tokens(
        [AddedToken(each["content"], special=True) for each in content["added_tokens"]]
    )
    found = {}
    for index, text in enumerate(texts):
        image = "<|vision_start|><|image_pad|><|vision_end|>"
        chat = f"<|im_start|>user\n{image}{image}{text}<|im_end|>\n"
        found[f"tokens.{index}"] = np.array(encoder.encode(chat).ids, np.int32)
    for index, text in enumerate(parity.TEXTS):
        found[f"text.{index}"] = np.array(encoder.encode(text).ids, np.int32)
    return found


#: How Qwen's tokenizers cut a text before they merge, from their tokenizer.json.
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def build(sizes: GrootConfig, tokens: tuple[int, int, int] | None = None) -> Any:
    """LeRobot's network at our sizes, its weights not set.

    Args:
        sizes: ours.
        tokens: ids of an image row and of the marks around an image; None for Qwen's.
    """
    import lerobot.policies.groot.groot_n1_7 as groot

    backbone = groot._cosmos_reason2_qwen3_vl_config()
    text, vision = backbone.text_config, backbone.vision_config
    _set(
        text,
        hidden_size=sizes.text.width,
        intermediate_size=sizes.text.ffn,
        num_hidden_layers=sizes.text.depth,
        num_attention_heads=sizes.text.heads,
        num_key_value_heads=sizes.text.kv_heads,
        head_dim=sizes.text.head_dim,
        vocab_size=sizes.vocab,
    )
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(getattr(text, name, None), dict):
            getattr(text, name)["mrope_section"] = list(sizes.text.sections)
    _set(
        vision,
        hidden_size=sizes.vision.width,
        intermediate_size=sizes.vision.ffn,
        depth=sizes.vision.depth,
        num_heads=sizes.vision.heads,
        num_position_embeddings=sizes.vision.table**2,
        out_hidden_size=sizes.text.width,
        deepstack_visual_indexes=list(sizes.vision.features),
        patch_size=sizes.patch,
    )
    if tokens is not None:
        image, start, end = tokens
        _set(
            backbone,
            image_token_id=image,
            video_token_id=sizes.vocab - 1,
            vision_start_token_id=start,
            vision_end_token_id=end,
        )
    with mock.patch.object(groot, "_cosmos_reason2_qwen3_vl_config", lambda: backbone):
        return groot.GR00TN17(configuration(sizes), load_backbone_weights=False).eval()


def configuration(sizes: GrootConfig) -> Any:
    """LeRobot's configuration of the network at our sizes."""
    from lerobot.policies.groot.groot_n1_7 import GR00TN17Config

    config = GR00TN17Config()
    head, adapter = sizes.head, sizes.adapter
    _set(
        config,
        select_layer=sizes.text.depth,
        backbone_embedding_dim=sizes.text.width,
        hidden_size=head.hidden,
        input_embedding_dim=head.width,
        max_state_dim=sizes.state_width,
        max_action_dim=sizes.action_dim,
        action_horizon=sizes.horizon,
        max_seq_len=sizes.positions,
        max_num_embodiments=sizes.embodiments,
        num_inference_timesteps=sizes.steps,
    )
    config.diffusion_model_cfg.update(
        num_layers=head.depth,
        num_attention_heads=head.heads,
        attention_head_dim=head.head_dim,
        output_dim=head.hidden,
    )
    config.vl_self_attention_cfg.update(
        num_layers=adapter.depth,
        num_attention_heads=adapter.heads,
        attention_head_dim=sizes.text.width // adapter.heads,
    )
    return config


def load_weights(model: Any, source: TensorSource) -> None:
    """Our tensors into every parameter; RuntimeError where the two do not have the same names."""
    known, found = set(source.names()), set()
    for name, parameter in model.named_parameters():
        found.add(name)
        with torch.no_grad():
            parameter.copy_(source.get(name))
    unknown = known - found - {"backbone.model.lm_head.weight"}
    if unknown:
        raise RuntimeError(f"LeRobot's network lacks {sorted(unknown)[:3]}")


def inputs(case: parity.Case) -> dict[str, torch.Tensor]:
    """A case as LeRobot's processor would hand it over."""
    images = list(parity.images(case).values())
    return as_inputs(images, parity.all_tokens(case), parity.state(case), case.embodiment)


def as_inputs(
    images: list[np.ndarray[Any, Any]],
    tokens: list[int],
    state: np.ndarray[Any, Any],
    embodiment: int,
) -> dict[str, torch.Tensor]:
    """Squares, token ids and a padded state as LeRobot's network takes them.

    The id of image rows is the most frequent one.
    """
    ids = torch.tensor([tokens])
    grid = images[0].shape[0] // 16
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == ids.mode().values).long(),
        "pixel_values": torch.cat([patches(image) for image in images]),
        "image_grid_thw": torch.tensor([[1, grid, grid]] * len(images)),
        "state": torch.from_numpy(state)[None],
        "embodiment_id": torch.tensor([embodiment], dtype=torch.int32),
    }


def patches(image: np.ndarray[Any, Any]) -> torch.Tensor:
    """[patches, 3 * 2 * 16 * 16] float32 by the image processor of Qwen's models."""
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(
        patch_size=16,
        temporal_patch_size=2,
        merge_size=2,
        do_resize=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    found: torch.Tensor = processor(images=[image], return_tensors="pt")["pixel_values"]
    return found


def decide(model: Any, values: dict[str, torch.Tensor], noise: torch.Tensor) -> dict[str, Any]:
    """Actions of one decision, and what shows where a difference comes from."""
    found: dict[str, Any] = {}
    head = model.action_head
    velocities: list[torch.Tensor] = []
    hooks = [
        model.backbone.visual.merger.register_forward_hook(
            lambda _m, _i, out: found.__setitem__("image_rows", out)
        ),
        model.backbone.language_model.layers[-1].register_forward_hook(
            lambda _m, _i, out: found.__setitem__("text_rows", _first(out)[0])
        ),
        head.vl_self_attention.register_forward_hook(
            lambda _m, _i, out: found.__setitem__("context", _first(out)[0])
        ),
        head.state_encoder.register_forward_hook(
            lambda _m, _i, out: found.__setitem__("state", out[0])
        ),
        head.action_decoder.register_forward_hook(lambda _m, _i, out: velocities.append(out[0])),
    ]

    def drawn(*_args: Any, **options: Any) -> torch.Tensor:
        return noise[None].to(options["device"], options["dtype"])

    try:
        with torch.inference_mode(), mock.patch.object(torch, "randn", drawn):
            actions = model.get_action(values)["action_pred"]
    finally:
        for hook in hooks:
            hook.remove()
    return {**found, "velocity": velocities[0][1:], "actions": actions[0]}


def decision(case: parity.Case) -> Arrays:
    """One case, its arrays by name."""
    model = build(parity.config(case), (parity.IMAGE, parity.VISION_START, parity.VISION_END))
    if case.arithmetic != "float32":
        model.to(torch.bfloat16)
    if case.arithmetic == "rounded":
        model.to(torch.float32)
    load_weights(model, parity.source(case))
    result = decide(model, inputs(case), torch.from_numpy(parity.noise(case)))
    return {f"{case.name}.{name}": value.float().numpy() for name, value in result.items()}


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, tuple | list) else value


def _set(config: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(config, name, value)
