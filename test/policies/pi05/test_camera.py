"""Images on the device as they come: equal to the host's way, at the level of a session."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from flashrt_core.contract import Role
from flashrt_core.errors import InputError, OptionError
from flashrt_core.fidelity.qualification import Gates, qualify
from flashrt_core.images import Frame, frame_of
from flashrt_core.load import LoadOptions, load, qualifier
from flashrt_core.policies.base import Observation, Prepared
from flashrt_core.policies.pi05.camera import decode_view
from flashrt_core.policies.pi05.config import make_config
from flashrt_core.preparation import prepare
from flashrt_core.session import NOISE, Session, noise_for
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


@pytest.mark.parametrize(
    "large",
    [
        *(
            frame_of(draw_image(*size, encoding), "", turn)
            for size, encoding, turn in (
                ((120, 160), "rgb8", 90),
                ((720, 1280), "bgr8", 180),
                ((240, 320), "yuyv", 0),
                ((200, 300), "bayer_rggb8", 270),
                ((180, 240), "nv12", 0),
            )
        ),
        # As a driver hands it over, and as the node decodes it from a JPEG.
        draw_image(120, 160, "rgb8").data.reshape(120, 160, 3),
        # Its rows end with so many bytes that no one reads.
        frame_of(draw_image(20, 30, "mono8", padding=2000)),
    ],
)
def test_the_host_resizes_what_the_window_cannot_hold(
    sessions: tuple[Session, Session], large: Frame | np.ndarray
) -> None:
    noise = np.zeros((10, 32), np.float32)
    seen = observation(frame_of(draw_image(9, 9, "mono8")), large)
    host, device = (session.decide(seen, noise=noise).raw for session in sessions)
    assert np.array_equal(host, device)
    encoded = sessions[1].processor.encode(seen, "go")
    assert encoded["image.left_wrist_0_rgb"].size == 3 * 56 * 56


class TestBytesWithTheirDescription:
    """A window that was written directly never shows what an earlier picture left behind it."""

    def encoded(self, session: Session) -> dict[str, np.ndarray]:
        small = frame_of(draw_image(20, 30, "rgb8"))
        return session.processor.encode(observation(small, small), "pick up the cup")

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda data, _: {"image": data[:-1]}, "a picture inside the 1799 bytes .*1800 bytes"),
            (lambda data, _: {"image": data[:1]}, "inside the 1 bytes"),
            (lambda data, fields: {"picture": fields + (np.arange(16) == 1)}, "got 1890 bytes"),
            (lambda data, fields: {"picture": fields - 2000 * (np.arange(16) == 3)}, "inside"),
            (lambda data, fields: {"picture": fields + 30 * (np.arange(16) == 11)}, "square of 56"),
            (lambda *_: {"picture": None}, "'picture.base_0_rgb' together, got one"),
            (lambda *_: {"image": None}, "'picture.base_0_rgb' together, got one"),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, sessions: tuple[Session, Session], change: Callable[..., dict], text: str
    ) -> None:
        session = sessions[1]
        values = self.encoded(session)
        session.select_shape(session.contract.shapes[0])
        session.write(values)
        before = session.decide(noise=np.zeros((10, 32), np.float32)).raw
        data, fields = (values[f"{part}.base_0_rgb"] for part in ("image", "picture"))
        for part, value in change(data, fields).items():
            name = f"{part}.base_0_rgb"
            if value is None:
                del values[name]
            else:
                values[name] = value.astype(values[name].dtype)
        with pytest.raises(InputError, match=text):
            session.write(values)
        assert np.array_equal(session.decide(noise=np.zeros((10, 32), np.float32)).raw, before)

    def test_black_needs_no_bytes(self, sessions: tuple[Session, Session]) -> None:
        noise, black = np.zeros((10, 32), np.float32), np.zeros((56, 56, 3), np.uint8)
        values = self.encoded(sessions[1])
        for view in VIEWS:
            values[f"image.{view}"] = np.zeros(1, np.uint8)
            values[f"picture.{view}"] = np.zeros(16, np.int32)
        sessions[1].select_shape(sessions[1].contract.shapes[0])
        sessions[1].write(values)
        expected = sessions[0].decide(observation(black, black), noise=noise).raw
        assert np.array_equal(sessions[1].decide(noise=noise).raw, expected)


def test_frames_hold_what_their_layout_says(sessions: tuple[Session, Session]) -> None:
    whole = frame_of(draw_image(20, 30, "rgb8"))
    layout = whole.layout
    for wrong, text in (
        ((layout, whole.data[:-1]), r"image data: expected at least 1800 bytes .*, got 1799"),
        ((layout, b""), "got 0"),
        ((layout, whole.data[::2]), "without gaps, got ndarray of other items, or with gaps"),
        ((layout, whole.data.astype(np.int32)), "got ndarray of other items"),
        ((layout, whole.data.tolist()), "a buffer of bytes without gaps, got list"),
        ((layout, "text"), "got str"),
        ((layout, None), "got NoneType"),
        ((layout, whole.data, 45), "rotation_deg: expected 0, 90, 180 or 270, got 45"),
        ((replace(layout, height=-20), whole.data), "at least 1 x 1, got 30 x -20"),
        ((replace(layout, height=21), whole.data), "layout: expected 1890 bytes"),
        ((replace(layout, rows=1), whole.data), "layout: expected 1800 bytes"),
        ((replace(layout, step=80), whole.data), "field 'step': expected at least 90"),
        ((replace(layout, width=30.5), whole.data), "field 'width': expected a whole number"),
        ((replace(layout, encoding="8UC3"), whole.data), "encoding: expected one of rgb8"),
        ((None, whole.data), "expected an ImageLayout, got None"),
    ):
        with pytest.raises(InputError, match=text) as error:
            Frame(*wrong)
        assert "\n" not in str(error.value)
    # More bytes than it needs do no harm, and are not sent.
    longer = Frame(layout, np.append(whole.data, np.zeros(7, np.uint8)))
    found = sessions[1].processor.encode(observation(longer, longer), "go")
    assert found["image.base_0_rgb"].size == 1800
    # One whose buffer has shrunk since is refused when it is used.
    shrinking = array.array("B", whole.data.tobytes())
    frame = Frame(layout, shrinking)
    del shrinking[100:]
    for session in sessions:
        with pytest.raises(InputError, match="expected at least 1800 bytes .*got 100"):
            session.decide(observation(frame, whole))


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


def test_prepared_images_give_equal_bits(sessions: tuple[Session, Session]) -> None:
    """On either way, whether they are used, used again, or made for another view."""
    first = frame_of(draw_image(90, 120, "bgr8", padding=8))
    second = frame_of(draw_image(48, 64, "nv12"), "", 180)
    noise = noise_for(0, 0, sessions[0].contract.input(NOISE).shape)
    wanted = sessions[0].decide(observation(first, second), noise=noise).raw.tobytes()
    for session in sessions:
        decide = session.decide
        stale = prepare(session, VIEWS[0], frame_of(draw_image(30, 40, "mono8")))
        epochs = session.ledger.page().epochs
        prepared = prepare(session, VIEWS[0], first)
        assert session.ledger.page().epochs == epochs, "nothing gets older by it"
        assert isinstance(prepared, Prepared) and prepared.image is first
        for one in (prepared, prepared, first):
            assert decide(observation(one, second), noise=noise).raw.tobytes() == wanted
        decide(observation(stale, second), noise=noise)
        swapped = decide(observation(second, first), noise=noise).raw.tobytes()
        other = Observation({VIEWS[0]: second, VIEWS[1]: prepared}, np.zeros(1, np.float32))
        assert decide(other, noise=noise).raw.tobytes() == swapped, "made for another view"
        with pytest.raises(InputError, match=r"image 'base_0_rgb': expected \[Y, X, 3\] uint8"):
            prepare(session, VIEWS[0], np.zeros((4, 4), np.uint8))
