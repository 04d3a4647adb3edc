"""Arrays of the host: none is kept, none is changed, and their layout does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from flashrt_core.errors import InputError, StaleStateError
from flashrt_core.images import ROTATIONS_DEG, Frame, frame_of, rotate
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from test.kernels.cameras import draw_image

VIEW = "base_0_rgb"


def open_session(**options: object) -> Session:
    plain = LoadOptions(
        views=(VIEW,),
        state_dim=2,
        action_dim=2,
        prompt="go",
        prompt_buckets=(32,),
        steps=1,
        threads=1,
        max_sessions=3,
        delta_actions=(True, True),
    )
    return load(replace(plain, **options))


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    found = open_session()
    yield found
    found.engine.close()


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (56, 56, 3), np.uint8)


def raw_of_written(session: Session, noise: np.ndarray) -> np.ndarray:
    """Raw actions of windows whose state, which these actions add to, the session does not know."""
    with pytest.raises(InputError, match="state: expected 2 numbers, got none"):
        session.decide(noise=noise)
    return session.read("actions")


class TestAReusedBuffer:
    """What was decided on stays what it was, whatever the host writes into its arrays next."""

    def test_state_of_actions_capsules_and_forks(self, session: Session) -> None:
        state = np.array([0.25, -0.5], np.float32)
        noise = np.zeros((10, 32), np.float32)
        session.decide(Observation({VIEW: image()}, state), noise=noise)
        session.snapshot("kept")
        expected = session.act(noise=noise).actions
        state[:] = 100.0
        fork = session.engine.fork("branch", source=session.name)
        other = session.engine.fork("other", capsule="kept")
        found = [each.act(noise=noise).actions for each in (session, fork, other)]
        session.restore("kept")
        found.append(session.act(noise=noise).actions)
        for each in (fork, other):
            session.engine.drop_session(each.name)
        assert all(np.array_equal(actions, expected) for actions in found)

    def test_state_of_a_capsule_from_elsewhere(self, session: Session) -> None:
        noise = np.zeros((10, 32), np.float32)
        session.decide(Observation({VIEW: image()}, np.zeros(2, np.float32)), noise=noise)
        session.snapshot("sent")
        expected = session.act(noise=noise).actions
        sent = session.engine.store.export("sent")
        session.engine.store.drop("sent")
        state = np.zeros(2, np.float32)
        staged = {name: value.copy() for name, value in sent.host.staged.items()}
        host = replace(sent.host, robot_state=state, staged=staged)
        came = replace(sent, host=host, payload=sent.payload.copy())
        session.engine.store.adopt(came)
        for array in (state, came.payload, *staged.values()):
            array[:] = 1
        session.restore("sent")
        assert np.array_equal(session.act(noise=noise).actions, expected)
        # The prompt counts as the one that was staged: the retained embedding is used again.
        again = session.decide(Observation({VIEW: image()}, np.zeros(2, np.float32)), noise=noise)
        assert np.array_equal(again.actions, expected)

    def test_images_and_windows(self, session: Session) -> None:
        pixels, noise, state = image(1), np.zeros((10, 32), np.float32), np.zeros(2, np.float32)
        expected = session.decide(Observation({VIEW: pixels}, state), noise=noise).raw
        session.observe(Observation({VIEW: pixels}, state))
        pixels[:] = 0
        assert np.array_equal(session.decide(noise=noise).raw, expected)
        encoded = session.processor.encode(Observation({VIEW: image(1)}, state), "go")
        values = {name: value.copy() for name, value in encoded.items()}
        session.write(values)
        values["prompt_tokens"][1:] = 5
        session.write(values)  # not the ones that were staged: they are embedded
        assert not np.array_equal(raw_of_written(session, noise), expected)
        session.write(encoded)
        assert np.array_equal(raw_of_written(session, noise), expected)

    def test_what_is_kept_cannot_be_written(self, session: Session) -> None:
        session.observe(Observation({VIEW: image()}, np.zeros(2, np.float32)))
        host = session.host_state()
        assert host.seen_state is not None
        for array in (host.seen_state, *host.staged.values()):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 1


@pytest.mark.parametrize("numerics", ["openpi", "lerobot"])
@pytest.mark.parametrize("size", [(1, 33), (33, 1), (1, 1)])
def test_pictures_of_one_row_or_column(numerics: str, size: tuple[int, int]) -> None:
    message = draw_image(*size, "bgr8")
    upright = frame_of(message).rgb()
    seen: list[tuple[np.ndarray | Frame, ...]] = []
    for turn in ROTATIONS_DEG:
        turned = np.rot90(upright, -turn // 90)
        seen.append((frame_of(message, "", turn), turned, rotate(upright, turn)))
    results = []
    for camera_bytes in (0, 10_000):
        session = open_session(numerics=numerics, camera_bytes=camera_bytes)
        noise, state = np.zeros((10, 32), np.float32), np.zeros(2, np.float32)
        results += [
            [session.decide(Observation({VIEW: one}, state), noise=noise).raw for one in same]
            for same in seen
        ]
        session.engine.close()
    for host, device in zip(results[:4], results[4:], strict=True):
        assert all(np.array_equal(host[0], other) for other in (*host, *device))


def test_mirrored_pictures(session: Session) -> None:
    noise, state = np.zeros((10, 32), np.float32), np.zeros(2, np.float32)
    for pixels in (image(), image()[:1], image()[:, :1]):
        for view in (pixels[::-1], pixels[:, ::-1], pixels[::-1, ::-1], pixels[..., ::-1]):
            found, expected = (
                session.decide(Observation({VIEW: one}, state), noise=noise).raw
                for one in (view, np.array(view, order="C"))
            )
            assert np.array_equal(found, expected)


def test_a_refused_part_of_a_prompt_is_no_prompt(session: Session) -> None:
    noise, seen = np.zeros((10, 32), np.float32), Observation({VIEW: image()}, np.zeros(2))
    expected = session.decide(seen, noise=noise).raw
    session.snapshot("before")
    session.restore("before")
    with pytest.raises(StaleStateError, match="'prompt_length'"):
        session.write({"prompt_tokens": np.ones(32, np.int32)})
    # Its window has changed: the staged prompt, though the same as before, is embedded again.
    assert np.array_equal(session.decide(seen, noise=noise).raw, expected)
    session.engine.store.drop("before")
