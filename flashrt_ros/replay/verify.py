"""What a demo proves beside its latency, each by comparing bytes.

``full_equals_split`` and ``capsule_bit_exact`` run on a session of this process, fed by the node's
own ingest; ``capsule_bit_exact`` runs over the services of a live node too.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rclpy.serialization import deserialize_message

from flashrt_core.policies.base import Observation
from flashrt_core.session import NOISE, Session, noise_for
from flashrt_ros.ingest import Ingest
from flashrt_ros.parameters import NodeConfig

from .bag import Bag, Route
from .messages import message_class
from .records import ChunkRecord
from .run import LiveNode
from .step import Step, Stepper, steps

_CAPSULE = "verify"
_FORK = "verify"


def observations(
    bag: Bag, routes: Sequence[Route], config: NodeConfig, rate_hz: float, count: int
) -> list[Observation]:
    """The first ``count`` observations that step mode gives the node at ``rate_hz``."""
    kinds = {route.input.name: message_class(route.input.msgtype) for route in routes}
    found = []
    for step in itertools.islice(steps(bag, routes, rate_hz), count):
        ingest = Ingest(config, lambda _target, _refusal: None)
        for name, message in step.messages:
            ingest.offer(
                ingest.inputs[name], deserialize_message(message.data, kinds[name]), step.time_ns
            )
        found.append(ingest.gather(step.time_ns).observation)
    return found


def full_equals_split(session: Session, seen: Sequence[Observation]) -> bool:
    """Whether a decision in one replay and one stage by stage give the same bytes."""
    shape = session.contract.input(NOISE).shape
    for index, observation in enumerate(seen):
        noise = noise_for(0, index, shape)
        full = session.decide(observation, noise=noise)
        split = session.decide(observation, noise=noise, split=True)
        if full.raw.tobytes() != split.raw.tobytes():
            return False
    return True


def capsule_bit_exact(session: Session, seen: Sequence[Observation]) -> bool:
    """Whether a restored context gives the bytes it gave before others overwrote the buffers."""
    first, *others = seen
    noise = noise_for(0, 0, session.contract.input(NOISE).shape)
    session.observe(first)
    for stage in session.contract.decision_stages[:-1]:
        session.run(stage.name)
    session.snapshot(_CAPSULE)
    before = session.act(noise=noise).raw.tobytes()
    overwritten = {session.decide(each, noise=noise).raw.tobytes() for each in others}
    session.restore(_CAPSULE)
    after = session.act(noise=noise).raw.tobytes()
    session.engine.store.drop(_CAPSULE)
    # Equal bytes prove nothing where every observation gives the same ones.
    return after == before and before not in overwritten


def capsule_over_services(live: LiveNode, sequence: Sequence[Step]) -> bool:
    """The same through ~/save_capsule, ~/decide and ~/restore_capsule of a live node."""
    stepper = Stepper(live.client, live.player)
    first, *others = sequence
    stepper.decide(first)
    # Of main the node gives no chunk whose observation is as old as the first will be.
    live.client.fork_session(_FORK)
    live.client.save_capsule(_CAPSULE, _FORK)
    before = stepper.act(_FORK)
    for step in others:
        stepper.decide(step, _FORK)
    live.client.restore_capsule(_CAPSULE, _FORK)
    after = stepper.act(_FORK)
    live.client.drop_capsule(_CAPSULE)
    live.client.drop_session(_FORK)
    return _identity(after) == _identity(before)


def bit_identical(one: Sequence[ChunkRecord], other: Sequence[ChunkRecord]) -> bool:
    """Whether two runs made the same decisions: numbers, stamps, plan and action bytes."""
    return bool(one) and [_identity(c) for c in one] == [_identity(c) for c in other]


def _identity(chunk: ChunkRecord) -> tuple[object, ...]:
    key = (chunk.session, chunk.sequence, chunk.stamp_ns, chunk.fingerprint)
    return (*key, chunk.actions.shape, chunk.actions.tobytes())
