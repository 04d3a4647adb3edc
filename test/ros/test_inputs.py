"""Inputs without a node: what is taken, refused and counted, and which sample is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("builtin_interfaces")

from flashrt_core.images import Frame
from flashrt_ros.errors import StaleInputError
from flashrt_ros.ingest import Ingest, require_stamped
from flashrt_ros.inputs import Refusal
from flashrt_ros.parameters import CameraConfig, build_config
from flashrt_ros.sensors import CameraInput, JointsInput

pytestmark = pytest.mark.ros
MS = 1_000_000
T0 = 1_000_000 * MS  # "now" of the tests


def header(stamp_ns: int) -> Any:
    sec, nanosec = divmod(stamp_ns, 1_000 * MS)
    return SimpleNamespace(stamp=SimpleNamespace(sec=sec, nanosec=nanosec))


def image(stamp_ns: int, value: int = 0, encoding: str = "mono8", **changes: Any) -> Any:
    fields = {"height": 2, "width": 2, "encoding": encoding, "is_bigendian": 0, "step": 0}
    fields |= {"data": bytes([value] * 4)} | changes
    return SimpleNamespace(header=header(stamp_ns), **fields)


def joints(stamp_ns: int, names: list[str], positions: list[float]) -> Any:
    return SimpleNamespace(header=header(stamp_ns), name=names, position=positions)


def camera(**changes: Any) -> CameraInput:
    fields = {"encoding": "", "transport": "raw", "rotation_deg": 0, "max_age_s": 0.1}
    return CameraInput(CameraConfig("eye", "image", "slot", **(fields | changes)))


def pixel(item: CameraInput, now_ns: int) -> int | None:
    sample = item.select(now_ns)
    return None if sample is None else int(item.convert(sample)[0, 0, 0])


def test_the_newest_sample_within_its_age_is_chosen() -> None:
    item = camera()
    assert pixel(item, T0) is None
    assert item.offer(image(T0 - 40 * MS, 1), T0) is None
    assert item.offer(image(T0 - 20 * MS, 2), T0) is None
    assert pixel(item, T0) == 2
    assert pixel(item, T0 + 80 * MS) == 2, "exactly the maximum age"
    assert pixel(item, T0 + 80 * MS + 1) is None
    assert "is 0.100 s old, allowed 0.100 s" in item.explain(T0 + 80 * MS + 1)


def test_slightly_early_stamps_are_normal_and_far_ones_are_not_used_yet() -> None:
    item = camera()
    item.offer(image(T0, 1), T0)
    item.offer(image(T0 + 50 * MS, 2), T0)
    item.offer(image(T0 + 90 * MS, 3), T0)
    assert pixel(item, T0) == 2
    assert pixel(item, T0 + 40 * MS) == 3
    lone = camera()
    lone.offer(image(T0 + 400 * MS), T0)
    assert lone.select(T0) is None
    assert "stamped 0.400 s ahead of the node's clock" in lone.explain(T0)
    assert (item.counters.ahead, lone.counters.ahead) == (1, 1), "50 ms are no fault"


def test_stamps_going_backwards_are_refused_and_lose_nothing() -> None:
    item = camera()
    item.offer(image(T0, 1), T0)
    refusal = item.offer(image(T0 - 5 * MS, 2), T0)
    assert refusal == Refusal("stamp backwards", "stamp is 0.005 s before that of the last message")
    assert item.offer(image(T0, 3), T0) is None, "an equal stamp is not backwards"
    assert pixel(item, T0) == 3
    assert item.counters.refused == {"stamp backwards": 1}
    assert (item.counters.received, item.counters.accepted) == (3, 2)


def test_a_clock_that_went_back_starts_history_anew() -> None:
    """A looped bag: stamps and clock jump back together; a refusal would last a whole loop."""
    item = camera()
    item.offer(image(T0 + 9_000 * MS, 1), T0 + 9_000 * MS)
    assert item.offer(image(T0, 2), T0) is None
    assert pixel(item, T0) == 2
    assert item.newest_stamp_ns() == T0


def test_one_wild_stamp_does_not_block_the_input() -> None:
    item = camera()
    item.offer(image(T0, 1), T0)
    item.offer(image(T0 + 10**18, 2), T0)
    assert pixel(item, T0) == 1, "the good one before is still there"
    assert item.offer(image(T0 + 10 * MS, 3), T0 + 10 * MS) is None
    assert pixel(item, T0 + 10 * MS) == 3


def test_messages_without_a_stamp_get_the_time_they_came() -> None:
    item = camera()
    item.offer(image(0, 5), T0)
    assert item.newest_stamp_ns() == T0
    assert pixel(item, T0) == 5
    assert item.counters.unstamped == 1


def test_overwriting_unused_samples_is_counted_apart_from_refusals() -> None:
    item = camera()
    for k in range(4):
        item.offer(image(T0 + k, k), T0)
    sample = item.select(T0)
    assert sample is not None
    item.mark_used(sample, T0)
    item.offer(image(T0 + 9, 9), T0)
    assert (item.counters.overwritten, item.counters.used) == (3, 1)
    assert sum(item.counters.refused.values()) == 0


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        (image(T0, encoding="16UC1", data=bytes(8)), "encoding", "depth in millimetres"),
        (image(T0, encoding="h264"), "encoding", "got 'h264'"),
        (image(T0, data=bytes(3)), "size", "expected 4 bytes"),
        (image(T0, step=1), "size", "field 'step'"),
    ],
)
def test_refused_images_say_why(message: Any, reason: str, text: str) -> None:
    item = camera()
    item.offer(image(T0, 7), T0)
    refusal = item.offer(message, T0)
    assert refusal is not None and refusal.reason == reason and text in refusal.text
    assert pixel(item, T0) == 7
    assert item.counters.refused == {reason: 1}


def test_an_input_without_a_sample_says_what_it_refused() -> None:
    item = camera()
    assert item.explain(T0).endswith("has received nothing usable")
    item.offer(image(T0, data=bytes(3)), T0)
    assert item.explain(T0).endswith(f"nothing usable (last refused: {item.counters.last_refusal})")
    item.offer(image(T0, 1), T0)
    late = T0 + 1000 * MS
    assert item.last_refused() == "" and "refused" not in item.explain(late)
    assert item.last_refused(0).startswith("last refused: size: ") and item.last_refused(1) == ""
    sample = item.select(T0)
    assert sample is not None
    item.discard(sample, Refusal("decode", "it does not"))
    assert item.explain(T0).endswith("nothing usable (last refused: decode: it does not)")


def test_raw_images_can_be_handed_on_as_they_came() -> None:
    item = CameraInput(CameraConfig("eye", "image", "slot", "", "raw", 90, 0.1), raw=True)
    assert item.offer(image(T0, 7), T0) is None
    sample = item.select(T0)
    assert sample is not None
    frame = item.convert(sample)
    assert isinstance(frame, Frame) and frame.data is sample.value.data
    assert frame.rotation_deg == 90 and frame.rgb().tolist() == [[[7] * 3] * 2] * 2
    assert item.offer(image(T0, height=4, data=bytes(8)), T0) is None


class TestJoints:
    def item(self) -> JointsInput:
        return JointsInput("joints", "joint_states", ("a", "b", "c"), 0.1)

    def test_positions_are_ordered_by_name_and_extras_ignored(self) -> None:
        item = self.item()
        names = ["x", "c", "a", "b"]
        assert item.offer(joints(T0, names, [math.nan, 3.0, 1.0, 2.0]), T0) is None
        sample = item.select(T0)
        assert sample is not None
        value = item.convert(sample)
        assert value.dtype == np.float32 and value.tolist() == [1.0, 2.0, 3.0]

    @pytest.mark.parametrize(
        ("names", "positions", "reason", "text"),
        [
            (["a", "c"], [1.0, 3.0], "joint names", "joints b are missing; got a, c"),
            ([], [], "joint names", "joints a, b, c are missing"),
            (["a", "b", "c", "b"], [1.0, 2.0, 3.0, 4.0], "joint names", "b appear twice"),
            (["a", "b", "c"], [1.0, 2.0], "size", "expected 3 positions, one a name, got 2"),
            (["a", "b", "c"], [1.0, math.nan, 3.0], "not finite", "position of b is NaN"),
            (["a", "b", "c"], [1.0, 2.0, -math.inf], "not finite", "position of c"),
            (["a", "b", "c"], [1.0, 2.0, 1e300], "not finite", "position of c"),
        ],
    )
    def test_refusals(
        self, names: list[str], positions: list[float], reason: str, text: str
    ) -> None:
        item = self.item()
        item.offer(joints(T0, ["a", "b", "c"], [1.0, 2.0, 3.0]), T0)
        refusal = item.offer(joints(T0 + MS, names, positions), T0 + MS)
        assert refusal is not None and refusal.reason == reason and text in refusal.text
        sample = item.select(T0 + MS)
        assert sample is not None and item.convert(sample).tolist() == [1.0, 2.0, 3.0]

    def test_names_of_strangers_do_not_flood_the_log(self) -> None:
        refusal = self.item().offer(joints(T0, ["x" * 10_000] * 50, [0.0] * 50), T0)
        assert refusal is not None and len(refusal.text) < 300


@dataclass
class Refusals:
    seen: list[tuple[str, Refusal]] = field(default_factory=list)

    def __call__(self, item: Any, refusal: Refusal) -> None:
        self.seen.append((item.name, refusal))


def make_ingest(**changes: Any) -> tuple[Ingest, Refusals]:
    values = {
        "cameras": ["left", "right"],
        "camera.left.topic": "l",
        "camera.right.topic": "r",
        "camera.right.slot": "other",
        "joints.names": ["a"],
    }
    refusals = Refusals()
    return Ingest(build_config(values | changes), refusals), refusals


def fill(ingest: Ingest, stamps: dict[str, int]) -> None:
    for name, stamp in stamps.items():
        item = ingest.inputs[name]
        message = joints(stamp, ["a"], [0.5]) if name == "joints" else image(stamp, 3)
        assert ingest.offer(item, message, stamp)


def test_an_observation_is_put_together_by_view_with_its_stamps() -> None:
    ingest, _ = make_ingest()
    fill(ingest, {"left": T0 - 30 * MS, "right": T0 - 10 * MS, "joints": T0 - 20 * MS})
    gathered = ingest.gather(T0)
    observation = gathered.observation
    assert list(observation.images) == ["left", "other"]
    assert observation.images["other"].shape == (2, 2, 3)
    assert observation.state is not None and observation.state.tolist() == [0.5]
    assert observation.stamp_ns == T0 - 10 * MS
    assert gathered.oldest_stamp_ns == T0 - 30 * MS
    assert [item.counters.used for item in ingest.inputs.values()] == [1, 1, 1]


def test_missing_and_old_inputs_are_named_together() -> None:
    ingest, _ = make_ingest()
    fill(ingest, {"left": T0, "joints": T0 - 300 * MS})
    with pytest.raises(StaleInputError) as error:
        ingest.gather(T0)
    assert error.value.inputs == ("right", "joints")
    text = str(error.value)
    assert "'right' (r) has received nothing usable" in text
    assert "'joints' (joint_states) is 0.300 s old, allowed 0.200 s" in text
    assert ingest.inputs["left"].counters.used == 0


def test_what_was_observed_is_current_as_long_as_each_input_allows() -> None:
    ingest, _ = make_ingest(**{"joints.on_missing": "stop"})
    fill(ingest, {"left": T0 - 30 * MS, "right": T0, "joints": T0 - 20 * MS})
    stamps = dict(ingest.gather(T0).observation.stamps_ns)
    assert stamps == {"left": T0 - 30 * MS, "right": T0, "joints": T0 - 20 * MS}
    limits = {name: item.max_age_ns for name, item in ingest.inputs.items()}
    first = min(stamps, key=lambda name: stamps[name] + limits[name])
    end = stamps[first] + limits[first]
    fill(ingest, {"left": end, "right": end, "joints": end})  # what there is now is not used
    ingest.require_current(stamps, end)
    with pytest.raises(StaleInputError) as error:
        ingest.require_current(stamps, end + 1)
    assert error.value.inputs == (first,) and error.value.code == 83
    assert f"context that is kept, its sample of input '{first}'" in str(error.value)
    assert "decide without reuse_context" in str(error.value)
    with pytest.raises(StaleInputError):
        ingest.require_current(stamps, T0 - 60 * MS)  # the clock went back
    with pytest.raises(StaleInputError) as error:  # joints stop the node, whatever was observed
        ingest.require_current({}, end + limits["joints"] + 1)
    assert error.value.inputs == ("joints",)


def test_what_nobody_knows_the_age_of_is_too_old() -> None:
    ingest, _ = make_ingest(**{"camera.right.on_missing": "hold"})
    known = {"left": T0, "right": T0, "joints": T0}
    ingest.require_current(known, T0)
    ingest.require_current({"left": T0, "joints": T0}, T0)  # the other camera was masked
    for stamps, unknown in (
        ({}, ("left", "right", "joints")),
        ({"left": T0, "right": T0}, ("joints",)),
        ({"right": T0, "joints": T0}, ("left",)),
        ({**known, "nose": T0}, ("nose",)),
    ):
        with pytest.raises(
            StaleInputError, match="got one of unknown age; decide without"
        ) as error:
            ingest.require_current(stamps, T0)
        assert error.value.inputs == unknown


def test_a_context_that_is_older_than_it_was_asked_for() -> None:
    stamps = {"left": T0, "joints": T0 - 10 * MS}
    for asked in ({}, {"left": T0}, {"left": T0 - 1, "joints": T0 - 10 * MS}):
        require_stamped(stamps, asked)
    for asked, late in (
        ({"left": T0 + 1}, ("left",)),
        ({"left": T0, "joints": T0}, ("joints",)),
        ({"right": 0}, ("right",)),
    ):
        with pytest.raises(StaleInputError, match="one stamped at not_before or later") as error:
            require_stamped(stamps, asked)
        assert error.value.inputs == late


def test_a_least_stamp_is_kept_even_where_the_clock_lags() -> None:
    # The newest image lies ahead of the node's clock (a late /clock tick); the one before it is
    # usable by age, but older than what the request asked for.
    ingest, _ = make_ingest()
    for stamp in (T0, T0 + 200 * MS):
        fill(ingest, {"left": stamp})
    fill(ingest, {"right": T0, "joints": T0})
    assert ingest.gather(T0).oldest_stamp_ns == T0
    with pytest.raises(StaleInputError) as error:
        ingest.gather(T0, {"left": T0 + 100 * MS})
    assert error.value.inputs == ("left",)
    assert "stamped 0.200 s ahead of the node's clock" in str(error.value)
    later = ingest.gather(T0 + 180 * MS, {"left": T0 + 100 * MS})
    assert later.observation.stamp_ns == T0 + 200 * MS


def test_a_message_that_cannot_be_read_is_counted_as_one_that_came() -> None:
    ingest, refusals = make_ingest()
    ingest.refuse(ingest.inputs["left"], Refusal("malformed", "no Image can be read"))
    counters = ingest.inputs["left"].counters
    assert (counters.received, counters.accepted, counters.refused) == (1, 0, {"malformed": 1})
    assert counters.last_refusal == "malformed: no Image can be read"
    assert [name for name, _ in refusals.seen] == ["left"]


def test_no_joints_configured_gives_no_state() -> None:
    ingest, _ = make_ingest(**{"joints.names": [], "action.names": ["go"]})
    fill(ingest, {"left": T0, "right": T0})
    assert ingest.gather(T0).observation.state is None


def test_an_image_that_does_not_decode_falls_back_to_the_one_before() -> None:
    cv2 = pytest.importorskip("cv2")
    ingest, refusals = make_ingest(**{"camera.left.transport": "compressed"})
    good = cv2.imencode(".png", np.full((4, 4, 3), 9, np.uint8))[1].tobytes()
    broken = good[:40] + bytes(len(good) - 52) + good[-12:]
    for k, data in enumerate((good, broken)):
        message = SimpleNamespace(header=header(T0 + k * MS), format="png", data=data)
        assert ingest.offer(ingest.inputs["left"], message, T0 + k * MS) == (data is good)
    fill(ingest, {"right": T0, "joints": T0})
    gathered = ingest.gather(T0 + 2 * MS)
    assert gathered.observation.images["left"][0, 0].tolist() == [9, 9, 9]
    assert gathered.oldest_stamp_ns == T0
    assert [(name, refusal.reason) for name, refusal in refusals.seen] == [("left", "decode")]
    counters = ingest.inputs["left"].counters
    assert counters.refused == {"decode": 1} and counters.accepted == 1


def test_another_clock_is_recognised_only_when_all_inputs_live_on_it() -> None:
    ingest, _ = make_ingest()
    assert not ingest.on_foreign_clock(T0), "no data is not a foreign clock"
    fill(ingest, {"left": T0, "right": T0, "joints": T0})
    assert not ingest.on_foreign_clock(T0 + 59_000 * MS)
    assert ingest.on_foreign_clock(T0 + 61_000 * MS)
    assert ingest.on_foreign_clock(0), "and also when the node's clock does not run"
    fill(ingest, {"joints": T0 + 61_000 * MS})
    assert not ingest.on_foreign_clock(T0 + 61_000 * MS)


def test_forgetting_after_a_clock_jump() -> None:
    ingest, _ = make_ingest()
    fill(ingest, {"left": T0, "right": T0, "joints": T0})
    ingest.forget()
    assert [item.name for item in ingest.unusable(T0)] == ["left", "right", "joints"]
