"""What the host writes and reads of a policy: the windows, and the inputs and outputs they are.

A policy's state, where it takes one as numbers, is an input of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Protocol

from ..contract import BufferSpec, DType, InputSpec, OutputSpec, Rate, Role, Update
from ..guidance import GUIDANCE, PREVIOUS
from ..kernels.picture import FIELDS

#: Input (and buffer) of a normalised state, for policies whose network takes it as numbers.
STATE = "state"


class Sizes(Protocol):
    """What of a policy's configuration decides about its windows.

    Attributes:
        image_size: side R of the square image, pixels.
        camera_bytes: room for a camera's image as it comes; 0 for squares.
        action_dim: width A of an action row inside the network.
        horizon: action rows H.
        max_prompt_tokens: longest prompt P.
        state_width: numbers of the state's window; 0 for none.
        real_time_chunking: whether there are windows of guidance.
        image_doc: how the host makes the square.
    """

    @property
    def image_size(self) -> int: ...

    @property
    def camera_bytes(self) -> int: ...

    @property
    def action_dim(self) -> int: ...

    @property
    def horizon(self) -> int: ...

    @property
    def max_prompt_tokens(self) -> int: ...

    @property
    def state_width(self) -> int: ...

    @property
    def real_time_chunking(self) -> bool: ...

    @property
    def image_doc(self) -> str: ...


def image_input(view: str) -> str:
    """Name of the input (and buffer) that holds a camera's image."""
    return f"image.{view}"


def views_of(inputs: Container[str], slots: tuple[str, ...]) -> tuple[str, ...]:
    """The slots that have an image among these inputs, in the policy's order."""
    return tuple(slot for slot in slots if image_input(slot) in inputs)


def picture_input(view: str) -> str:
    """Name of the input (and buffer) that says how to read a camera's bytes."""
    return f"picture.{view}"


def _image_shape(config: Sizes) -> tuple[int, ...]:
    """A camera's bytes, or a square that the host made of them."""
    side = config.image_size
    return (config.camera_bytes,) if config.camera_bytes else (side, side, 3)


def window_buffers(config: Sizes, views: tuple[str, ...]) -> Iterator[BufferSpec]:
    """The windows, in the order of their addresses."""
    chunk = (config.horizon, config.action_dim)
    # Neighbours share a copy: noise and images are new in every decision, a prompt with an image.
    for name in guidance_inputs(config):
        yield BufferSpec(name, chunk, DType.F32, Role.SWAP)
    yield BufferSpec("noise", chunk, DType.F32, Role.SWAP)
    for view in views:
        yield BufferSpec(image_input(view), _image_shape(config), DType.U8, Role.SWAP)
    for view in views if config.camera_bytes else ():
        yield BufferSpec(picture_input(view), (FIELDS,), DType.I32, Role.SWAP)
    if config.state_width:
        yield BufferSpec(STATE, (1, config.state_width), DType.F32, Role.SWAP)
    yield BufferSpec("prompt_tokens", (config.max_prompt_tokens,), DType.I32, Role.SWAP)
    yield BufferSpec("prompt_length", (1,), DType.I32, Role.SWAP)
    yield BufferSpec("actions", chunk, DType.F32, Role.SWAP, "the sample while it is denoised")


def guidance_inputs(config: Sizes) -> tuple[str, ...]:
    """Windows of real-time chunking; none where the plan does without."""
    return (PREVIOUS, GUIDANCE) if config.real_time_chunking else ()


def inputs(config: Sizes, views: tuple[str, ...]) -> tuple[InputSpec, ...]:
    """Everything that the host writes, for cameras in slot order."""
    raw = config.camera_bytes > 0
    images = tuple(
        InputSpec(
            image_input(view),
            image_input(view),
            _image_shape(config),
            DType.U8,
            Update.SWAP,
            Rate.OBSERVATION,
            unit="bytes" if raw else "RGB",
            doc="as the camera sent it" if raw else config.image_doc,
            shorter=raw,
        )
        for view in views
    )
    pictures = tuple(
        InputSpec(
            picture_input(view),
            picture_input(view),
            (FIELDS,),
            DType.I32,
            Update.SWAP,
            Rate.OBSERVATION,
            doc="how to read the bytes, and where the picture goes on the square",
        )
        for view in (views if raw else ())
    )
    noise = InputSpec(
        "noise",
        "noise",
        (config.horizon, config.action_dim),
        DType.F32,
        Update.SWAP,
        Rate.CHUNK,
        doc="standard normal",
    )
    state = InputSpec(
        STATE,
        STATE,
        (1, config.state_width),
        DType.F32,
        Update.SWAP,
        Rate.OBSERVATION,
        unit="normalised",
        doc="zero behind the robot's numbers",
    )
    states = (state,) if config.state_width else ()
    return (*images, *pictures, *states, *_prompt(config), noise, *_guidance(config))


def _prompt(config: Sizes) -> tuple[InputSpec, ...]:
    tokens = InputSpec(
        "prompt_tokens",
        "prompt_tokens",
        (config.max_prompt_tokens,),
        DType.I32,
        Update.STAGED,
        Rate.PROMPT,
        transform="prompt",
        doc="token ids, zero behind the prompt",
    )
    length = InputSpec(
        "prompt_length",
        "prompt_length",
        (1,),
        DType.I32,
        Update.STAGED,
        Rate.PROMPT,
        transform="prompt",
        unit="tokens",
    )
    return tokens, length


def _guidance(config: Sizes) -> Iterator[InputSpec]:
    docs = {
        PREVIOUS: (
            "normalised",
            "what guided numbers are to become",
        ),
        GUIDANCE: ("", "how far each is guided: 1 keeps the previous number, 0 leaves it free"),
    }
    chunk = (config.horizon, config.action_dim)
    for name in guidance_inputs(config):
        unit, doc = docs[name]
        yield InputSpec(name, name, chunk, DType.F32, Update.SWAP, Rate.CHUNK, unit=unit, doc=doc)


def prompt_bounds(vocab: int, bucket: int) -> Mapping[str, range]:
    """What a prompt's windows may hold, of a network that knows ``vocab`` tokens, in a bucket."""
    return {"prompt_tokens": range(vocab), "prompt_length": range(bucket + 1)}


def outputs(config: Sizes) -> tuple[OutputSpec, ...]:
    """Everything that the host reads."""
    return (
        OutputSpec(
            "actions",
            "actions",
            (config.horizon, config.action_dim),
            DType.F32,
            unit="normalised",
            doc="action rows before un-normalisation; a robot uses the first columns",
        ),
    )
