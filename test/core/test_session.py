"""Sessions on the toy policy: freshness, capsules, forks, switches against known values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flashrt_core.engine import Engine
from flashrt_core.errors import (
    CapsuleError,
    CapsuleStoreFullError,
    CaptureError,
    ContractError,
    DeviceError,
    InputError,
    NumericsError,
    SessionError,
    SessionLimitError,
    ShapeKeyError,
    StaleStateError,
)
from flashrt_core.kernels.op import Op
from flashrt_core.session import Session, noise_for

from . import toy


@pytest.fixture
def engine() -> Engine:
    return toy.engine()


@pytest.fixture
def main(engine: Engine) -> Session:
    return engine.create_session("main", seed=7, prompt="ab")


def raw(value: int, prompt: str, index: int, seed: int = 7) -> np.ndarray:
    return toy.expected(value, prompt, noise_for(seed, index, (2, 3)))


def test_a_decision_is_what_the_formulas_say(main: Session) -> None:
    first = main.decide(toy.see(3))
    assert np.array_equal(first.raw, raw(3, "ab", 0).astype(np.float32))
    assert np.array_equal(first.actions, first.raw[:, :2])
    assert (first.index, first.stamp_ns, set(first.stage_ms)) == (0, 3, {"context", "action"})
    assert np.allclose(main.decide(toy.see(4)).raw, raw(4, "ab", 1))


def test_full_and_split_give_equal_bits(engine: Engine, main: Session) -> None:
    other = engine.create_session("other", seed=7, prompt="ab")
    assert (
        main.decide(toy.see(5)).raw.tobytes() == other.decide(toy.see(5), split=True).raw.tobytes()
    )


def test_longer_prompt_takes_the_larger_bucket(main: Session) -> None:
    main.decide(toy.see(1))
    main.set_prompt("abc")
    assert np.allclose(main.decide(toy.see(1)).raw, raw(1, "abc", 1))
    assert main.shape == toy.LARGE


def test_noise_is_a_function_of_seed_and_index() -> None:
    assert np.array_equal(noise_for(1, 2, (2, 3)), noise_for(1, 2, (2, 3)))
    assert not np.array_equal(noise_for(1, 2, (2, 3)), noise_for(1, 3, (2, 3)))
    assert not np.array_equal(noise_for(1, 2, (2, 3)), noise_for(2, 2, (2, 3)))
    many = noise_for(0, 0, (100, 1000))
    assert abs(many.mean()) < 0.02 and abs(many.std() - 1) < 0.02


class TestFreshness:
    def test_action_needs_a_context(self, main: Session) -> None:
        main.observe(toy.see(1))
        main.write({"noise": np.zeros((2, 3), np.float32)})
        with pytest.raises(StaleStateError, match="'context' to have run"):
            main.run("action")
        with pytest.raises(StaleStateError, match="'context' to have run"):
            main.run("action", allow_stale=True)

    def test_a_new_image_makes_the_context_stale(self, main: Session) -> None:
        main.decide(toy.see(1))
        main.observe(toy.see(2))
        with pytest.raises(StaleStateError, match=r"before the last write of \['image'\]"):
            main.act()
        stale = main.act(allow_stale=True)
        assert np.allclose(stale.raw, raw(1, "ab", stale.index))
        main.run("context")
        assert np.allclose(main.act().raw, raw(2, "ab", 2))

    def test_a_new_prompt_makes_the_context_stale_at_once(self, main: Session) -> None:
        main.decide(toy.see(1))
        main.set_prompt("cd")
        with pytest.raises(StaleStateError, match="before the last write of"):
            main.act()
        with pytest.raises(StaleStateError, match="announced only"):
            main.run("prompt")
        with pytest.raises(StaleStateError, match="'context' would use 'prompt'"):
            main.decide()
        assert np.allclose(main.decide(toy.see(1)).raw, raw(1, "cd", 1))

    def test_setting_the_same_prompt_changes_nothing(self, main: Session) -> None:
        main.decide(toy.see(1))
        main.set_prompt("ab")
        assert np.allclose(main.act().raw, raw(1, "ab", 1))

    def test_going_back_to_the_old_prompt_embeds_it_again(self, main: Session) -> None:
        main.decide(toy.see(1))
        main.set_prompt("cd")
        main.set_prompt("ab")
        assert np.allclose(main.decide(toy.see(1)).raw, raw(1, "ab", 1))

    def test_nothing_observed(self, engine: Engine, main: Session) -> None:
        with pytest.raises(InputError, match="expected an observation"):
            main.write({"noise": np.zeros((2, 3), np.float32)})
        main.select_shape(toy.SMALL)
        with pytest.raises(StaleStateError, match="'image'"):
            main.run("context")
        with pytest.raises(InputError, match="expected a prompt"):
            engine.create_session("mute").decide(toy.see(1))

    def test_the_transform_runs_only_when_its_input_changed(self) -> None:
        runs = []

        def counting(stage, shape):
            inner = toy.body(stage, shape)

            def run(lane, b):
                if stage == "prompt":
                    lane.issue(Op("count", lambda tokens: runs.append(int(tokens[0]))), b["tokens"])
                inner(lane, b)

            return run

        main = toy.engine(bodies=counting).create_session("main", prompt="ab")
        assert runs == [0]  # the warm-up, on an empty window
        runs.clear()
        for value in (1, 2, 3):
            main.decide(toy.see(value))
        assert runs == [ord("a")]
        main.set_prompt("zb")
        main.decide(toy.see(3))
        assert runs == [ord("a"), ord("z")]


class TestInputs:
    def test_bad_values_name_the_input_and_change_nothing(self, main: Session) -> None:
        main.decide(toy.see(1))
        image = np.zeros((2, 2, 3), np.uint8)
        for values, words in (
            ({"image": image.astype(np.float32)}, "'image'.*uint8.*float32"),
            ({"image": image[:1]}, r"'image'.*\[2, 2, 3\].*\[1, 2, 3\]"),
            ({"image": image, "noise": np.full((2, 3), np.nan, np.float32)}, "'noise'.*finite"),
        ):
            with pytest.raises(InputError, match=words):
                main.write(values)
        with pytest.raises(ContractError, match="'video'"):
            main.write({"video": image})
        assert np.allclose(main.act().raw, raw(1, "ab", 1))  # still fresh: no window changed

    def test_bad_prompts_keep_the_old_one(self, main: Session) -> None:
        for text, message in (("", "visible character"), ("abcde", "1 to 4 characters")):
            with pytest.raises(InputError, match=message):
                main.set_prompt(text)
        assert main.prompt == "ab"

    def test_a_shape_that_was_not_captured(self, main: Session) -> None:
        with pytest.raises(ShapeKeyError, match="got 2 views"):
            main.select_shape(toy.SMALL._replace(views=2))


class TestCapsules:
    def test_restore_after_the_buffers_were_overwritten(self, main: Session) -> None:
        main.observe(toy.see(1))
        main.run("context")
        info = main.snapshot("mark")
        first = main.act()
        main.set_prompt("xyz")
        main.decide(toy.see(9))
        assert main.restore("mark") == info
        again = main.act()
        assert again.raw.tobytes() == first.raw.tobytes()
        assert (again.index, main.prompt, info.nbytes) == (first.index, "ab", 2 * 8 + 16 + 4)

    def test_a_capsules_lineage_is_that_of_its_moment(self, engine: Engine, main: Session) -> None:
        made = []
        for value, name in enumerate(("first", "second")):
            main.decide(toy.see(value))
            main.snapshot(name)
            lineage = engine.store.export(name).host.lineage
            made.append({stage: dict(epochs) for stage, epochs in lineage.made.items()})
            main.act()
        older, newer = made
        for stage, name in (("context", "image"), ("action", "noise"), ("action", "image")):
            assert newer[stage][name] > older[stage][name]
        for stage in ("prompt", "context"):
            assert newer[stage]["tokens"] == older[stage]["tokens"]
        main.restore("first")
        main.act()
        for name, expected in zip(("first", "second"), made, strict=True):
            assert engine.store.export(name).host.lineage.made == expected

    def test_context_after_restore_needs_new_images(self, main: Session) -> None:
        main.decide(toy.see(1))
        main.snapshot("mark")
        main.restore("mark")
        with pytest.raises(StaleStateError, match="'image'.*restore"):
            main.run("context")
        with pytest.raises(StaleStateError, match="'image'"):
            main.decide()
        assert np.allclose(main.decide(toy.see(2)).raw, raw(2, "ab", 1))

    def test_an_observation_after_restore_makes_the_context_stale(self, main: Session) -> None:
        main.decide(toy.see(1))
        main.snapshot("mark")
        main.restore("mark")
        main.observe(toy.see(2))
        with pytest.raises(StaleStateError, match="image"):
            main.act()

    def test_names_and_limits(self, main: Session) -> None:
        with pytest.raises(CapsuleError, match="completed stage to save"):
            main.snapshot("early")
        main.decide(toy.see(1))
        with pytest.raises(CapsuleError, match="a saved capsule, got no such capsule"):
            main.restore("a")
        with pytest.raises(CapsuleError, match="visible character"):
            main.snapshot("  ")
        main.snapshot("a")
        main.snapshot("b")
        main.snapshot("a")  # its own name may be reused
        with pytest.raises(CapsuleStoreFullError, match=r"2 of 2 in use.*drop a capsule"):
            main.snapshot("c")
        with pytest.raises(CapsuleError, match=r"one of \['a', 'b'\]"):
            main.restore("c")
        main.engine.store.drop("a")
        main.snapshot("c")
        assert [info.name for info in main.engine.store.list()] == ["b", "c"]

    def test_a_foreign_sessions_capsule_is_refused(self, engine: Engine, main: Session) -> None:
        other = engine.create_session("other", prompt="q")
        other.decide(toy.see(8))
        other.snapshot("theirs")
        main.decide(toy.see(1))
        with pytest.raises(CapsuleError, match="'main', got one of session 'other'.*fork"):
            main.restore("theirs")
        with pytest.raises(CapsuleError, match="a free name"):
            main.snapshot("theirs")
        assert np.allclose(main.act().raw, raw(1, "ab", 1))

    def test_export_and_adopt_between_engines_of_one_plan(self, main: Session) -> None:
        main.observe(toy.see(6))
        main.run("context")
        main.snapshot("mark")
        image = main.engine.store.export("mark")
        twin = toy.engine().create_session("main", seed=7)
        twin.engine.store.adopt(image)
        twin.restore("mark")
        assert twin.act().raw.tobytes() == main.act().raw.tobytes()

    def test_adopt_names_what_differs(self, main: Session) -> None:
        main.decide(toy.see(6))
        main.snapshot("mark")
        image = main.engine.store.export("mark")
        with pytest.raises(CapsuleError, match=r"differs in \['weights'\]"):
            toy.engine(weights="others").store.adopt(image)
        short = replace(image, payload=image.payload[:-1])
        with pytest.raises(CapsuleError, match="36 bytes, got .*35 bytes"):
            toy.engine().store.adopt(short)


class TestSessions:
    def test_switching_brings_each_sessions_state_back(self, engine: Engine, main: Session) -> None:
        other = engine.create_session("other", seed=1, prompt="xyz")
        main.decide(toy.see(1))
        other.decide(toy.see(2))
        assert np.allclose(main.act().raw, raw(1, "ab", 1))
        assert np.allclose(other.act().raw, raw(2, "xyz", 1, seed=1))
        with pytest.raises(StaleStateError, match="session switch"):
            main.decide()
        assert engine.traffic.switches == 4

    def test_fork_continues_as_its_source_would(self, engine: Engine, main: Session) -> None:
        main.decide(toy.see(1))
        main.snapshot("mark")
        live = engine.fork("live", source="main")
        saved = engine.fork("saved", capsule="mark")
        assert live.act().raw.tobytes() == main.act().raw.tobytes() == saved.act().raw.tobytes()
        live.set_prompt("zz")
        assert np.allclose(live.decide(toy.see(2)).raw, raw(2, "zz", 2))
        assert np.allclose(main.act().raw, raw(1, "ab", 2))

    def test_names_and_limits(self, engine: Engine, main: Session) -> None:
        with pytest.raises(SessionError, match="not taken"):
            engine.create_session("main")
        with pytest.raises(SessionError, match="visible character"):
            engine.fork(" ", source="main")
        with pytest.raises(SessionError, match="no such session"):
            engine.fork("x", source="nobody")
        with pytest.raises(CapsuleError, match="no such capsule"):
            engine.fork("x", capsule="nothing")
        engine.create_session("b")
        engine.create_session("c")
        with pytest.raises(SessionLimitError, match="at most 3.*max_sessions"):
            engine.create_session("d")
        with pytest.raises(SessionError, match="no such session"):
            engine.fork("d", source="nobody")  # making room would not help
        with pytest.raises(CapsuleError, match="no such capsule"):
            engine.fork("d", capsule="nothing")
        engine.drop_session("b")
        gone = engine.create_session("d", prompt="a")
        engine.drop_session("d")
        with pytest.raises(SessionError, match="dropped"):
            gone.decide(toy.see(1))

    def test_a_dropped_sessions_name_starts_clean(self, engine: Engine, main: Session) -> None:
        main.decide(toy.see(1))
        engine.drop_session("main")
        again = engine.create_session("main", seed=7, prompt="ab")
        with pytest.raises(StaleStateError):
            again.select_shape(toy.SMALL)
            again.act()


class TestCapture:
    def test_a_stage_that_touches_an_undeclared_buffer(self) -> None:
        def bodies(stage, shape):
            if stage != "context":
                return toy.body(stage, shape)
            return lambda lane, b: lane.issue(toy.CONTEXT, b["image"], b["embedding"], b["noise"])

        with pytest.raises(CaptureError, match="'context'.*got 'noise'.*reads or writes"):
            toy.engine(bodies=bodies)

    def test_a_stage_that_brings_its_own_tensor(self) -> None:
        def bodies(stage, shape):
            inner = toy.body(stage, shape)
            return lambda lane, b: inner(lane, {**b, "embedding": b["embedding"].clone()})

        with pytest.raises(CaptureError, match="at another address"):
            toy.engine(bodies=bodies)

    def test_a_body_that_raises(self) -> None:
        def bodies(stage, shape):
            def broken(lane, b):
                raise RuntimeError("no such tile")

            return broken

        with pytest.raises(CaptureError, match="'prompt' could not be captured.*no such tile"):
            toy.engine(bodies=bodies)

    def test_a_failing_replay_voids_the_state_and_the_engine_lives(self) -> None:
        fail = []

        def maybe(kv: object) -> None:
            if fail:
                raise RuntimeError("device lost")

        def bodies(stage, shape):
            inner = toy.body(stage, shape)

            def run(lane, b):
                if stage == "context":
                    lane.issue(Op("maybe", maybe), b["kv"])
                inner(lane, b)

            return run

        main = toy.engine(bodies=bodies).create_session("main", seed=7, prompt="ab")
        main.decide(toy.see(1))
        fail.append(True)
        with pytest.raises(DeviceError, match="device lost"):
            main.decide(toy.see(2))
        with pytest.raises(StaleStateError):
            main.act()
        fail.clear()
        assert np.allclose(main.decide(toy.see(3)).raw, raw(3, "ab", 1))

    def test_values_that_are_not_finite_never_leave(self) -> None:
        def spoil(out: object) -> None:
            out[1, 2] = float("nan")  # type: ignore[index]

        def bodies(stage, shape):
            inner = toy.body(stage, shape)

            def run(lane, b):
                inner(lane, b)
                if stage == "action":
                    lane.issue(Op("spoil", spoil), b["actions"])

            return run

        main = toy.engine(bodies=bodies).create_session("main", prompt="ab")
        with pytest.raises(NumericsError, match="nan at row 1, dimension 2"):
            main.decide(toy.see(1))
