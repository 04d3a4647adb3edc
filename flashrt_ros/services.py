"""The services of the node. They exist as long as the node does, whatever its state.

Each is an ``async def`` in a reentrant callback group: while the inference thread works for it,
the executor goes on with sensor messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.qos import QoSProfile
from std_srvs.srv import Trigger

from flashrt_core.errors import FlashRTError, InputError, SessionError
from flashrt_core.load import MAIN
from flashrt_ros.errors import INTERNAL, WrongStateError
from flashrt_ros.runtime import Runtime
from flashrt_ros.srv import (
    Decide,
    DropCapsule,
    ForkSession,
    ListCapsules,
    RestoreCapsule,
    SaveCapsule,
    SetPrompt,
)
from flashrt_ros.stamps import SECOND, in_seconds, time_message, to_ns
from flashrt_ros.turns import decide, where_a_chunk_begins
from flashrt_ros.wording import in_node_terms

INACTIVE, ACTIVE = "inactive", "active"
_CONFIGURED = (INACTIVE, ACTIVE)
# Requests that fit on their way in; the default of 10 loses the rest of a burst unanswered.
_REQUESTS = 1000

Serve = Callable[[Runtime, Any, Any], Awaitable[None]]


class Services:
    """Creates the services on a node; a request is answered in every lifecycle state.

    Args:
        node: has ``runtime`` (None while unconfigured), ``state`` and ``log_exception``.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._group = ReentrantCallbackGroup()
        self._create(SaveCapsule, "~/save_capsule", _CONFIGURED, _save)
        self._create(RestoreCapsule, "~/restore_capsule", _CONFIGURED, _restore)
        self._create(ForkSession, "~/fork_session", _CONFIGURED, _fork)
        self._create(ListCapsules, "~/list_capsules", _CONFIGURED, _list)
        self._create(DropCapsule, "~/drop_capsule", _CONFIGURED, _drop)
        self._create(SetPrompt, "~/set_prompt", _CONFIGURED, _set_prompt)
        self._create(Decide, "~/decide", (ACTIVE,), _decide)
        self._create(Trigger, "~/restart", _CONFIGURED, _restart)

    def _create(self, kind: Any, name: str, states: tuple[str, ...], serve: Serve) -> None:
        async def answer(request: Any, response: Any) -> Any:
            code, text = 0, ""
            try:
                await serve(self._runtime(name, states), request, response)
            except FlashRTError as error:
                config = self._node.runtime and self._node.runtime.config
                code, text = error.code, str(in_node_terms(error, config))
            except Exception as error:
                self._node.log_exception(f"service {name}", error)
                code, text = INTERNAL, f"{type(error).__name__} in {name}; see the log of the node"
            if kind is Trigger:
                response.success, response.message = not code, text
            else:
                response.error_code, response.error_msg = code, text
            return response

        self._node.create_service(
            kind, name, answer, callback_group=self._group, qos_profile=QoSProfile(depth=_REQUESTS)
        )

    def _runtime(self, name: str, states: tuple[str, ...]) -> Runtime:
        state, runtime = self._node.state, self._node.runtime
        if state not in states or runtime is None:
            raise WrongStateError(
                f"service {name}", expected=f"the node {' or '.join(states)}", got=state
            )
        found: Runtime = runtime
        return found


async def _save(runtime: Runtime, request: Any, response: Any) -> None:
    main = (request.session or MAIN) == MAIN

    def work() -> Any:
        midway = not (main and runtime.timed)
        info = _session(runtime, request).snapshot(request.name, midway=midway)
        runtime.view_engine()
        return info

    if main:
        info = await where_a_chunk_begins(runtime, f"capsule '{request.name}'", work)
    else:
        info = await runtime.run(work)
    response.bytes, response.decision = info.nbytes, info.decision


async def _restore(runtime: Runtime, request: Any, response: Any) -> None:
    def work() -> None:
        session = _session(runtime, request)
        session.restore(request.name)
        runtime.decider.forget_chunk(session.name)
        runtime.restored |= session.name == MAIN
        runtime.view_engine()

    await runtime.run(work)


async def _fork(runtime: Runtime, request: Any, response: Any) -> None:
    def work() -> None:
        engine = runtime.session.engine
        source = request.source_session or MAIN
        if request.capsule:
            engine.fork(request.new_session, capsule=request.capsule)
            runtime.decider.forget_chunk(request.new_session)
        else:
            engine.fork(request.new_session, source=source)
            runtime.decider.forked(request.new_session, source)
        runtime.view_engine()

    await runtime.run(work)


async def _list(runtime: Runtime, request: Any, response: Any) -> None:
    engine = runtime.session.engine
    capsules, sessions = await runtime.run(lambda: (engine.store.list(), list(engine.sessions)))
    response.names = [capsule.name for capsule in capsules]
    response.sessions = [capsule.session for capsule in capsules]
    response.fingerprints = [capsule.fingerprint for capsule in capsules]
    response.bytes = [capsule.nbytes for capsule in capsules]
    response.stamps = [time_message(capsule.stamp_ns) for capsule in capsules]
    response.live_sessions = sessions


async def _drop(runtime: Runtime, request: Any, response: Any) -> None:
    def work() -> None:
        engine = runtime.session.engine
        if not request.session:
            engine.store.drop(request.name)
        elif request.name in ("", MAIN):
            raise SessionError(
                f"session '{MAIN}'", expected="another one", got="a request to drop it"
            )
        else:
            engine.drop_session(request.name)
            runtime.decider.forget_chunk(request.name)
        runtime.view_engine()

    await runtime.run(work)


async def _set_prompt(runtime: Runtime, request: Any, response: Any) -> None:
    await runtime.run(lambda: _session(runtime, request).set_prompt(request.prompt))


async def _decide(runtime: Runtime, request: Any, response: Any) -> None:
    name = request.session or MAIN
    not_before = _not_before(runtime, request)
    if (timeout_ns := to_ns(request.timeout)) < 0:
        raise InputError("field 'timeout'", expected="0 s or more", got=in_seconds(timeout_ns))
    if request.reuse_context:
        work = partial(runtime.decider.decide, name, reuse_context=True, not_before=not_before)
        response.chunk = await runtime.run(work)
        return
    if name != MAIN and not runtime.ready(not_before):
        # A session that does not exist is said at once, not after a wait for inputs. On the
        # inference thread, behind a fork that may be about to create it.
        await runtime.run(lambda: _session(runtime, request))
    response.chunk = await decide(runtime, name, not_before, timeout_ns / SECOND)


async def _restart(runtime: Runtime, request: Any, response: Any) -> None:
    await runtime.run(runtime.decider.restart)
    runtime.restored = False


def _session(runtime: Runtime, request: Any) -> Any:
    return runtime.session.engine.session(request.session or MAIN)


def _not_before(runtime: Runtime, request: Any) -> dict[str, int]:
    known = runtime.ingest.inputs
    if len(request.inputs) != len(request.not_before):
        raise InputError(
            "field 'not_before'",
            expected=f"{len(request.inputs)} stamps, one an input",
            got=len(request.not_before),
        )
    unknown = [name for name in request.inputs if name not in known]
    if unknown:
        raise InputError("field 'inputs'", expected=f"names of {list(known)}", got=unknown)
    if twice := sorted({name for name in request.inputs if request.inputs.count(name) > 1}):
        raise InputError("field 'inputs'", expected="each name once", got=f"{twice} more than once")
    pairs = zip(request.inputs, request.not_before, strict=True)
    return {name: to_ns(stamp) for name, stamp in pairs}
