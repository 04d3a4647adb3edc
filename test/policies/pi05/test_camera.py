"""Images on the device as they come: equal to the host's way, at the level of a session."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from flashrt_core.contract import Role
from flashrt_core.errors import InputError, OptionError
from flashrt_core.images import Frame, frame_of
from flashrt_core.load import LoadOptions, load, qualifier
from flashrt_core.policies.base import Observation
from flashrt_core.policies.pi05.camera import decode_view
from flashrt_core.policies.pi05.config import make_config
from flashrt_core.qualification import Gates, qualify
from flashrt_core.session import Session
from test.kernels.cameras import draw_image, expected

VIEWS = ("base_0_rgb", "left_wrist_0_rgb")
CAPACITY = 40_000


def open_session(camera_bytes: int, numerics: str = "exact") -> Session:
    return load(
        LoadOptions(
            views=VIEWS,
            state_dim=1,
            prompt="pick up the cup",
            prompt_buckets=(32,),
            steps=2,
            numerics=numerics,
            camera_bytes=camera_bytes,
            threads=1,
            max_sessions=2,
        )
    )


@pytest.fixture(scope="module")
def sessions() -> Iterator[tuple[Session, Session]]:
    pair = open_session(0), open_session(CAPACITY)
    yield pair
    for session in pair:
        session.engine.close()


def observation(first: Frame | np.ndarray, second: Frame | np.ndarray) -> Observation:
    return Observation(dict(zip(VIEWS, (first, second), strict=True)), np.zeros(1, np.float32))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            frame_of(draw_image(90, 120, "bgr8", padding=8)),
            frame_of(draw_image(48, 64, "nv12"), "", 180),
        ),
        (
            frame_of(draw_image(60, 80, "bayer_gbrg8"), "", 90),
            draw_image(30, 50, "rgb8").data.reshape(30, 50, 3),
        ),
        # On the host after all: tall, or shrunk by more than the device's table.
        (frame_of(draw_image(120, 40, "rgb8")), frame_of(draw_image(4, 2400, "mono8"))),
    ],
)
def test_both_ways_give_equal_actions(
    sessions: tuple[Session, Session], first: Frame, second: Frame
) -> None:
    seen = observation(first, second)
    noise = np.random.default_rng(0).standard_normal((10, 32), dtype=np.float32)
    host, device = (session.decide(seen, noise=noise).raw for session in sessions)
    assert np.array_equal(host, device)


def test_smaller_images_leave_the_rest_of_the_window(sessions: tuple[Session, Session]) -> None:
    host, device = sessions
    noise = np.zeros((10, 32), np.float32)
    large, small = (
        frame_of(draw_image(100, 120, "rgb8")),
        frame_of(draw_image(20, 30, "mono8", seed=1)),
    )
    results = []
    for session in (host, device):
        session.decide(observation(large, large), noise=noise)
        results.append(session.decide(observation(small, large), noise=noise).raw)
    assert np.array_equal(*results)


def test_torch_filter_too() -> None:
    seen = observation(frame_of(draw_image(90, 120, "yuyv")), frame_of(draw_image(120, 60, "rgb8")))
    noise = np.zeros((10, 32), np.float32)
    results = []
    for camera_bytes in (0, CAPACITY):
        session = open_session(camera_bytes, "lerobot")
        results.append(session.decide(seen, noise=noise).raw)
        session.engine.close()
    assert np.array_equal(*results)


def test_too_many_bytes_are_refused(sessions: tuple[Session, Session]) -> None:
    large = frame_of(draw_image(120, 160, "rgb8"))
    with pytest.raises(
        InputError,
        match="'left_wrist_0_rgb': expected at most 40000 bytes, got 57600, 160 x 120 rgb8.*raise",
    ):
        sessions[1].decide(observation(frame_of(draw_image(9, 9, "mono8")), large))


def test_capacity_holds_the_square_at_least() -> None:
    for wrong in (1, 3 * 56 * 56 - 1):
        with pytest.raises(OptionError, match="camera_bytes.*9408"):
            make_config("tiny", camera_bytes=wrong)
    assert make_config("tiny", camera_bytes=3 * 56 * 56).camera_bytes == 9408


def test_the_contract_declares_bytes_and_pictures(sessions: tuple[Session, Session]) -> None:
    host, device = (session.contract for session in sessions)
    assert host.input("image.base_0_rgb").shape == (56, 56, 3)
    spec = device.input("image.base_0_rgb")
    assert spec.shape == (CAPACITY,) and spec.shorter
    assert device.buffer("picture.base_0_rgb").role is Role.SWAP
    assert {"picture.base_0_rgb", "picture.left_wrist_0_rgb"} <= set(device.stage("context").reads)
    assert not any(spec.name.startswith("picture") for spec in host.inputs)
    assert sessions[0].fingerprint != sessions[1].fingerprint


def test_windows_say_what_the_network_sees(sessions: tuple[Session, Session]) -> None:
    raw = draw_image(90, 120, "nv21", padding=8)
    config = make_config("tiny", camera_bytes=CAPACITY)
    values = sessions[1].processor.encode(observation(frame_of(raw), frame_of(raw)), "go")
    square = decode_view(config, VIEWS[0], values)
    assert np.array_equal(square, expected(raw, 56, "pillow"))
    assert values["image.base_0_rgb"].nbytes == raw.data.nbytes


def test_a_plan_with_raw_images_qualifies(sessions: tuple[Session, Session]) -> None:
    session = sessions[1]
    options = LoadOptions(
        views=VIEWS, state_dim=1, prompt_buckets=(32,), steps=2, camera_bytes=CAPACITY
    )
    seen = observation(frame_of(draw_image(90, 120, "rgb8")), frame_of(draw_image(48, 64, "uyvy")))
    gates = Gates(min_cosine=0.999999, max_error=1e-4, max_stage_error=1e-4)
    report = qualify(session, qualifier(options), gates, [("pick up the cup", seen)])
    assert report.passed
