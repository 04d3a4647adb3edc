"""LeRobot's LingBot-VA as a peer: its policy and a whole chunk of it with a full history.

A chunk is what its ``select_action`` does once the last one was executed: encode the pictures,
commit them and the executed actions, denoise video and actions. Its rows of keys and values are
looked up on the host in every layer of every pass, so no graph can hold a call of it; only the
eager path is here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from ..errors import OptionError
from ..policies.lingbot_va.config import BASE, VaeConfig
from ..policies.lingbot_va.weights import LATENT_MEAN, LATENT_STD
from .case import Case

NEEDS = ("lerobot.policies.lingbot_va.modeling_lingbot_va", "transformers", "diffusers", "einops")
EXTRA = "lerobot[lingbot_va]==0.6.1"
_SIDE, _FULL = 256, 17  # pixels of a camera; chunks until nothing is left of the first


def build(case: Case) -> Any:
    """The policy on the GPU, with random weights and a full history."""
    return built(case, "cuda")


def built(case: Case, place: str, base: int = BASE.vae.base, **sizes: Any) -> Any:
    """The same anywhere, and with other sizes of its configuration and of its video encoder."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.lingbot_va import modeling_lingbot_va as modeling
    from lerobot.policies.lingbot_va.configuration_lingbot_va import LingBotVAConfig

    cameras = [f"observation.images.camera{index}" for index in range(case.views)]
    config = LingBotVAConfig(
        device=place,
        obs_cam_keys=cameras,
        input_features={
            name: PolicyFeature(type=FeatureType.VISUAL, shape=(3, _SIDE, _SIDE))
            for name in cameras
        },
        num_inference_steps=1,
        action_num_inference_steps=1,
        **sizes,
    )
    with torch.device(place):
        policy = modeling.LingBotVAPolicy(config).eval()
        vae = encoder(replace(BASE.vae, base=base), decoder=16).to(policy.dtype).eval()
    rope = policy.transformer.rope  # its frequencies are no buffers: made on the CPU, as loaded
    rope.f_freqs_base, rope.h_freqs_base, rope.w_freqs_base = rope._precompute_freqs_base()
    policy._frozen = {"vae": vae, "streaming_vae": modeling.WanVAEStreamingWrapper(vae)}
    policy.reset()
    rows = torch.randn(2, case.prompt_tokens, config.text_dim, device=place, dtype=policy.dtype)
    padding = (0, 0, 0, config.max_sequence_length - case.prompt_tokens)
    policy._prompt_embeds, policy._negative_prompt_embeds = F.pad(rows, padding).split(1)
    policy.predict_action_chunk(_picture(policy))
    for _ in range(_FULL):  # of one step each, which fills the history as well as any
        _chunk(policy)
    config.num_inference_steps, config.action_num_inference_steps = case.steps, BASE.action_steps
    return policy


def encoder(sizes: VaeConfig, decoder: int) -> Any:
    """The video encoder as Wan2.2's 5B has it; ``decoder``: base width of what is not run."""
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(
        base_dim=sizes.base,
        decoder_base_dim=decoder,
        z_dim=sizes.latent,
        dim_mult=list(sizes.levels),
        num_res_blocks=sizes.blocks,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        latents_mean=list(LATENT_MEAN),
        latents_std=list(LATENT_STD),
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_temporal=4,
        scale_factor_spatial=16,
    )


def _picture(policy: Any) -> dict[str, torch.Tensor]:
    config = policy.config
    return {
        name: torch.rand(1, 3, _SIDE, _SIDE, device=config.device) for name in config.obs_cam_keys
    }


def _chunk(policy: Any, picture: dict[str, torch.Tensor] | None = None) -> Any:
    """One decision of an episode, seen the same picture all the time."""
    frames = policy.config.frame_chunk_size - (policy._frame_st_id == 0)
    policy._obs_buffer = [picture or _picture(policy)] * (4 * frames)
    return policy.predict_action_chunk(None)


def call(model: Any, case: Case) -> Callable[[], Any]:
    """A whole chunk on pictures that lie on the GPU."""
    picture = _picture(model)
    return lambda: _chunk(model, picture)


def compiled_graph(model: Any, case: Case) -> Callable[[], Any]:
    """OptionError: there is no such form."""
    raise OptionError(
        "option 'peer-paths'",
        expected="eager for policy 'lingbot_va', whose official code no graph holds",
        got="compiled_graph",
    )
