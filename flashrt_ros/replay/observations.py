"""What the node would have decided on, from a recording: read without starting a node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from rclpy.serialization import deserialize_message

from flashrt_core.errors import InputError, OptionError
from flashrt_core.observations import Sample
from flashrt_ros.errors import StaleInputError
from flashrt_ros.ingest import Ingest
from flashrt_ros.inputs import Input, Refusal

from .bag import Bag, Message
from .messages import message_class
from .parameter_file import read_parameters
from .step import steps


def bag_observations(path: Path, params: Path, limit: int | None = None) -> Iterator[Sample]:
    """The observations at the decision times of a parameter file, with its prompt.

    Args:
        path: a rosbag2.
        params: says which topic is what, and how often the node decides.
        limit: at most so many, spread over the whole recording.

    Raises:
        OptionError: an unusable bag or file, or a file without a prompt.
        InputError: no moment at which every input was usable; says what was refused.
    """
    file = read_parameters(params)
    if not file.config.prompt:
        raise OptionError(
            "parameter 'prompt'", expected="an instruction", got="''", remedy=f"set it in {params}"
        )
    refusals: list[Refusal] = []
    with Bag(path) as bag:
        routes = bag.routes(file.inputs, params)
        rate = file.config.rate_hz or 1.0
        if limit:  # fewer than the node would have made, never more
            rate = min(rate, limit / max(bag.seconds, 1e-3))
        ingest = Ingest(file.config, lambda _, refusal: refusals.append(refusal))
        types = {needed.name: needed.msgtype for needed in file.inputs}
        offered: dict[str, Message] = {}
        count = 0
        for step in islice(steps(bag, routes, rate), limit):
            for name, message in step.messages:
                if offered.get(name) is not message:
                    offered[name] = message
                    _offer(ingest, ingest.inputs[name], types[name], message)
            try:
                gathered = ingest.gather(step.time_ns)
            except StaleInputError:
                continue  # as the node would have made no decision
            count += 1
            yield file.config.prompt, gathered.observation
    if not count:
        raise InputError(
            f"bag '{path}'",
            expected="a moment at which every input is usable",
            got=refusals[-1].text if refusals else "none: inputs are too far apart in time",
        )


def _offer(ingest: Ingest, target: Input, msgtype: str, message: Message) -> None:
    content = deserialize_message(message.data, message_class(msgtype))
    ingest.offer(target, content, message.time_ns)
