"""Samples of one moment: which are chosen, when none are, and what a missing input does."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("builtin_interfaces")

from flashrt_core.errors import OptionError
from flashrt_core.policies import find_policy
from flashrt_ros.alignment import consistent
from flashrt_ros.errors import StaleInputError
from flashrt_ros.ingest import Ingest
from flashrt_ros.loading import load_options
from flashrt_ros.parameters import build_config

from .test_inputs import MS, T0, fill, image, joints, make_ingest

pytestmark = pytest.mark.ros


@dataclass(frozen=True)
class At:
    stamp_ns: int


def at(*stamps: int) -> list[At]:
    return [At(stamp) for stamp in stamps]


def stamps(found: Any) -> Any:
    if found is None:
        return None
    images, state = found
    return {n: s.stamp_ns for n, s in images.items()}, state and state.stamp_ns


@pytest.mark.parametrize(
    ("left", "right", "states", "skew", "wanted"),
    [
        # The newest of each fit: the state in the middle, not the newest.
        ([10, 43], [12, 45], [30, 40, 44, 60], 33, ((43, 45), 44)),
        # The newest image of the left stands alone: the pair before it is of one moment.
        ([10, 43], [12], [11, 44], 10, ((10, 12), 11)),
        # A limit holds to the nanosecond.
        ([0], [7], [3], 7, ((0, 7), 3)),
        ([0], [8], [3], 7, None),
        ([5], [5], [13], 7, None),
        ([5], [5], [12], 7, ((5, 5), 12)),
        # Twice the middle is odd: 3 and 4 are equally near to 3.5, and the newer counts.
        ([3], [4], [3, 4], 1, ((3, 4), 4)),
        # A state on the other side would be nearer, but outside the limit of the other image.
        ([0], [10], [11, 25], 10, None),
        # No state fits to the newest images, but to those before.
        ([0, 100], [1, 101], [0, 2, 60], 20, ((0, 1), 0)),
    ],
)
def test_the_newest_set_within_the_skew(
    left: list[int], right: list[int], states: list[int], skew: int, wanted: Any
) -> None:
    found = consistent({"left": at(*left), "right": at(*right)}, at(*states), skew)
    expected = wanted and (dict(zip(("left", "right"), wanted[0], strict=True)), wanted[1])
    assert stamps(found) == expected


def test_against_every_combination() -> None:
    """Of random streams, nothing newer than what is chosen keeps the limit, and what is does."""
    rng = random.Random(5)
    found_some = missed_some = 0
    for _ in range(300):
        streams = {
            name: at(*sorted(rng.sample(range(60), rng.randint(1, 4)))) for name in ("a", "b", "c")
        }
        states = at(*sorted(rng.sample(range(60), rng.randint(1, 12))))
        skew = rng.randint(0, 25)
        fitting = [
            (max(s.stamp_ns for s in images), images, state)
            for images in itertools.product(*streams.values())
            for state in states
            if np.ptp([s.stamp_ns for s in (*images, state)]) <= skew
        ]
        found = consistent(streams, states, skew)
        if not fitting:
            missed_some += 1
            assert found is None
            continue
        found_some += 1
        assert found is not None and found[1] is not None
        chosen = tuple(found[0].values())
        assert np.ptp([s.stamp_ns for s in (*chosen, found[1])]) <= skew
        newest = max(moment for moment, *_ in fitting)
        assert max(s.stamp_ns for s in chosen) == newest
        twice = min(s.stamp_ns for s in chosen) + max(s.stamp_ns for s in chosen)
        nearest = min(abs(2 * st.stamp_ns - twice) for _, im, st in fitting if im == chosen)
        assert abs(2 * found[1].stamp_ns - twice) == nearest
    assert found_some > 50 and missed_some > 50


def synchronised(skew_s: float, **changes: Any) -> Ingest:
    return make_ingest(**{"sync.max_skew_s": skew_s, "joints.max_age_s": 0.5, **changes})[0]


def test_joints_of_the_moment_of_the_images_are_used() -> None:
    newest, near = synchronised(0.0), synchronised(0.05)
    for ingest in (newest, near):
        for k in range(20):  # 100 Hz up to now; the images are 60 and 62 ms old
            stamp = T0 - (19 - k) * 10 * MS
            assert ingest.offer(ingest.inputs["joints"], joints(stamp, ["a"], [k]), stamp)
        fill(ingest, {"left": T0 - 62 * MS, "right": T0 - 60 * MS})
    values = [ingest.gather(T0).observation.state for ingest in (newest, near)]
    assert [value.tolist() for value in values if value is not None] == [[19.0], [13.0]]
    gathered = near.gather(T0)
    assert (gathered.oldest_stamp_ns, gathered.observation.stamp_ns) == (T0 - 62 * MS, T0 - 60 * MS)


def test_states_for_a_quarter_of_a_second_at_1_khz_are_kept_and_no_more() -> None:
    ingest = synchronised(0.002)
    for k in range(5000):
        stamp = T0 + k * MS
        ingest.offer(ingest.inputs["joints"], joints(stamp, ["a"], [k]), stamp)
    now = T0 + 4999 * MS
    assert len(ingest.inputs["joints"].candidates(now)) == 256
    fill(ingest, {"left": now - 250 * MS, "right": now - 250 * MS})
    state = ingest.gather(now).observation.state
    assert state is not None and state.tolist() == [4749.0]


def test_inputs_that_are_too_far_apart_are_named() -> None:
    ingest = synchronised(0.05)
    fill(ingest, {"left": T0 - 90 * MS, "right": T0, "joints": T0 - 20 * MS})
    with pytest.raises(StaleInputError) as error:
        ingest.gather(T0)
    assert error.value.skewed and error.value.inputs == ("left", "right")
    assert "within 0.050 s of each other, got the newest 0.090 s apart" in str(error.value)
    assert [item.counters.used for item in ingest.inputs.values()] == [0, 0, 0]
    fill(ingest, {"left": T0 - 50 * MS})
    assert ingest.gather(T0).oldest_stamp_ns == T0 - 50 * MS, "exactly the limit"


def test_what_is_asked_for_is_not_traded_for_a_better_fit() -> None:
    ingest = synchronised(0.01)
    fill(ingest, {"left": T0, "right": T0, "joints": T0})
    fill(ingest, {"left": T0 + 20 * MS})
    later = T0 + 25 * MS
    assert ingest.gather(later).observation.stamp_ns == T0
    with pytest.raises(StaleInputError) as error:
        ingest.gather(later, {"left": T0 + 20 * MS})
    assert error.value.skewed


def test_a_held_camera_is_masked_while_it_is_missing() -> None:
    ingest, _ = make_ingest(**{"camera.right.on_missing": "hold"})
    fill(ingest, {"left": T0, "right": T0, "joints": T0})
    assert ingest.gather(T0).masked == ()
    later = T0 + 600 * MS
    fill(ingest, {"left": later, "joints": later})
    gathered = ingest.gather(later)
    assert gathered.masked == ("right",)
    assert list(gathered.observation.images) == ["left"]
    assert gathered.oldest_stamp_ns == later, "what is not used has no age"
    assert ingest.inputs["right"].counters.masked == 1
    with pytest.raises(StaleInputError) as error:
        ingest.gather(later, {"right": later})
    assert error.value.inputs == ("right",), "who asks for a stamp of it means it"
    fill(ingest, {"right": later})
    assert ingest.gather(later).masked == ()


def test_one_camera_must_be_left() -> None:
    ingest, _ = make_ingest(**{"camera.left.on_missing": "hold", "camera.right.on_missing": "hold"})
    fill(ingest, {"joints": T0})
    with pytest.raises(StaleInputError) as error:
        ingest.gather(T0)
    assert error.value.inputs == ("left", "right")


def test_a_held_camera_that_lags_is_masked_rather_than_all_skewed() -> None:
    ingest = synchronised(0.05, **{"camera.left.on_missing": "hold"})
    fill(ingest, {"left": T0 - 90 * MS, "right": T0, "joints": T0})
    gathered = ingest.gather(T0)
    assert gathered.masked == ("left",) and list(gathered.observation.images) == ["other"]


def test_what_stops_the_node_is_known_at_once_but_not_to_who_asks_for_it() -> None:
    ingest, _ = make_ingest(**{"joints.on_missing": "stop"})
    assert [item.name for item in ingest.stopping(T0)] == ["joints"]
    assert ingest.stopping(T0, {"joints": T0}) == []
    fill(ingest, {"joints": T0})
    assert ingest.stopping(T0) == [], "cameras wait"
    assert [item.name for item in ingest.stopping(T0 + 201 * MS)] == ["joints"]


def test_plans_are_loaded_for_the_cameras_that_may_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values: dict[str, Any] = {"cameras": ["a", "b", "c"], "joints.names": ["j"]}
    values |= {f"camera.{key}.topic": key for key in "abc"}
    held = {f"camera.{key}.on_missing": "hold" for key in "abc"}
    assert load_options(build_config(values)).absent_views == 0
    assert load_options(build_config(values | dict([held.popitem()]))).absent_views == 1
    all_held = build_config(values | {f"camera.{key}.on_missing": "hold" for key in "abc"})
    assert load_options(all_held).absent_views == 2, "one is left"
    monkeypatch.setattr(type(find_policy("pi05")), "masks_views", False)
    with pytest.raises(OptionError, match=r"camera\.a\.on_missing': expected wait or stop: policy"):
        load_options(all_held)
    with pytest.raises(OptionError, match="on_missing': expected wait or stop: it is the only"):
        build_config({"cameras": ["a"], "camera.a.topic": "a", "joints.names": ["j"],
                      "camera.a.on_missing": "hold"})  # fmt: skip
    with pytest.raises(OptionError, match=r"'joints.on_missing': expected wait \| stop"):
        build_config(values | {"joints.on_missing": "hold"})


def test_an_unreadable_image_gives_way_to_the_set_before() -> None:
    """A sample that proves unusable is left out, and what belongs to it is chosen anew."""
    ingest = synchronised(0.005, **{"camera.left.max_age_s": 0.2, "camera.right.max_age_s": 0.2})
    for stamp in (T0, T0 + 33 * MS):
        fill(ingest, {"left": stamp, "right": stamp, "joints": stamp})
    bad = image(T0 + 33 * MS, 3)
    ingest.offer(ingest.inputs["left"], bad, T0 + 33 * MS)
    for sample in ingest.inputs["left"].candidates(T0 + 33 * MS)[-1:]:
        object.__setattr__(sample.value, "data", b"")  # as if the middleware took its buffer back
    now = T0 + 40 * MS
    first = ingest.gather(now)
    assert first.observation.stamp_ns == T0 + 33 * MS, "another image of that stamp serves"
    for sample in list(ingest.inputs["left"].candidates(now, T0 + 1)):
        object.__setattr__(sample.value, "data", b"")
    again = ingest.gather(now)
    assert again.oldest_stamp_ns == again.observation.stamp_ns == T0
    assert ingest.inputs["left"].counters.refused == {"decode": 2}
