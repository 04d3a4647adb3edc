"""Read a rosbag2 (sqlite3 or mcap, compressed or split) as raw messages, with errors in one line.

Messages stay serialised: the player hands the CDR bytes on as they were recorded. Nothing here
needs ROS.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rosbags.interfaces import Connection
from rosbags.rosbag2 import Reader

from flashrt_core.errors import OptionError
from flashrt_ros.parameters import COMPRESSED, RAW

from .parameter_file import COMPRESSED_TYPE, IMAGE_TYPE, JOINTS_TYPE, NodeInput


@dataclass(frozen=True)
class Topic:
    """A topic of a bag: message type and count."""

    name: str
    msgtype: str
    count: int


@dataclass(frozen=True)
class Message:
    """A recorded message: when it was recorded (ns) and its CDR bytes."""

    topic: str
    time_ns: int
    data: bytes

    @property
    def stamp_ns(self) -> int:
        """``header.stamp`` of a message that begins with a std_msgs/Header, in ns."""
        order = "<" if self.data[1] & 1 else ">"
        sec, nanosec = struct.unpack_from(order + "iI", self.data, 4)
        return int(sec) * 1_000_000_000 + int(nanosec)


@dataclass(frozen=True)
class Route:
    """A topic of the bag and the input that it feeds."""

    topic: str
    input: NodeInput


class Bag:
    """An opened recording; use as a context manager.

    Raises:
        OptionError: no such bag, not a rosbag2, damaged, or empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self._connections = _all_connections(self._reader)
        self.topics: dict[str, Topic] = {}
        for connection in self._connections:
            known = self.topics.get(connection.topic)
            count = connection.msgcount + (known.count if known else 0)
            self.topics[connection.topic] = Topic(connection.topic, connection.msgtype, count)
        self.message_count = self._reader.message_count
        if self.message_count == 0:
            self._reader.close()
            raise OptionError(f"bag '{path}'", expected="messages", got="none, it is empty")
        self.start_ns = self._reader.start_time
        self.end_ns = self._reader.end_time

    @property
    def seconds(self) -> float:
        """Recorded time from the first to the last message."""
        return (self.end_ns - self.start_ns) / 1e9

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()

    def messages(self, topics: Collection[str]) -> Iterator[Message]:
        """The messages of ``topics`` in recorded order.

        Raises:
            OptionError: the storage turns out to be damaged on the way.
        """
        wanted = [c for c in self._connections if c.topic in topics]
        if not wanted:
            return
        count = 0
        try:
            for connection, time_ns, data in self._reader.messages(wanted):
                count += 1
                yield Message(connection.topic, time_ns, bytes(data))
        except (GeneratorExit, OptionError):
            raise
        except Exception as error:  # every storage and codec of rosbags has its own family
            raise OptionError(
                f"bag '{self.path}'",
                expected="readable messages",
                got=f"{type(error).__name__} after {count} of them: {error}",
                remedy="recover it with 'ros2 bag reindex', or record it again",
            ) from error

    def describe(self) -> str:
        """The topics of the bag in one line, for messages."""
        return ", ".join(
            f"{topic.name} ({topic.msgtype}, {topic.count})" for topic in self.topics.values()
        )

    def routes(
        self, inputs: Sequence[NodeInput], source: Path, remaps: Mapping[str, str] | None = None
    ) -> tuple[Route, ...]:
        """Which topic of the bag feeds which input.

        Args:
            inputs: what the node subscribes to.
            source: the parameter file, for messages.
            remaps: topic of the bag -> topic of the node.

        Raises:
            OptionError: an input whose topic the bag lacks, holds no message of, or holds with
                another type; a remap of a topic that the bag lacks.
        """
        played_as = dict(remaps or {})
        for name in played_as:
            if name not in self.topics:
                raise OptionError(
                    f"remap of '{name}'",
                    expected=f"a topic of the bag: {self.describe()}",
                    got="none",
                )
        by_target = {target: name for name, target in played_as.items()}
        routes = []
        for needed in inputs:
            # A topic that is remapped away no longer feeds the input of its own name.
            own = "" if needed.topic in played_as else needed.topic
            name = by_target.get(needed.topic, own)
            topic = self.topics.get(name)
            if topic is None or topic.count == 0:
                state = "none of it" if topic else "no such topic"
                raise OptionError(
                    f"topic '{needed.topic}' of input '{needed.name}' in bag '{self.path}'",
                    expected="recorded messages",
                    got=f"{state}; the bag has {self.describe()}",
                    remedy=self._other_transport(needed, source)
                    or f"set '{needed.parameter}' in {source}, or add "
                    f"--remap BAG_TOPIC:={needed.topic}",
                )
            if topic.msgtype != needed.msgtype:
                raise OptionError(
                    f"topic '{name}' of input '{needed.name}' in bag '{self.path}'",
                    expected=needed.msgtype,
                    got=topic.msgtype,
                    remedy=_type_remedy(needed, topic.msgtype, source),
                )
            routes.append(Route(name, needed))
        return tuple(routes)

    def _other_transport(self, needed: NodeInput, source: Path) -> str:
        """How to take the images of an input in the transport in which the bag has them, or ""."""
        suffix = f"/{COMPRESSED}"
        compressed = needed.topic.endswith(suffix)
        other = needed.topic.removesuffix(suffix) if compressed else needed.topic + suffix
        wanted = IMAGE_TYPE if compressed else COMPRESSED_TYPE
        found = self.topics.get(other)
        if needed.msgtype == JOINTS_TYPE or found is None or found.msgtype != wanted:
            return ""
        return _transport_remedy(needed, RAW if compressed else COMPRESSED, source)


def _all_connections(reader: Reader) -> list[Connection]:
    """Those of metadata.yaml, and for storage that says other QoS of a topic, those too.

    A bag that was reindexed, converted or edited by hand may hold one QoS in its metadata and
    another in its storage; the reader would find no message of such a topic, without a word.
    """
    found = list(reader.connections)
    for storage in getattr(reader.storage, "storages", ()):
        for each in storage.connections:
            alike = [c for c in found if (c.topic, c.msgtype) == (each.topic, each.msgtype)]
            if alike and not any(_matches(c, each) for c in alike):
                known = alike[0]._replace(ext=each.ext, digest=each.digest, msgcount=0)
                found.append(known)
    return found


def _matches(known: Connection, stored: Connection) -> bool:
    """Whether the reader takes messages of ``stored`` for those of ``known``."""
    same = not known.digest or not stored.digest or known.digest == stored.digest
    return known.ext == stored.ext and same


def _transport_remedy(needed: NodeInput, transport: str, source: Path) -> str:
    return f"set 'camera.{needed.name}.transport: {transport}' in {source}"


def _type_remedy(needed: NodeInput, got: str, source: Path) -> str:
    if {needed.msgtype, got} == {IMAGE_TYPE, COMPRESSED_TYPE}:
        return _transport_remedy(needed, COMPRESSED if got == COMPRESSED_TYPE else RAW, source)
    return f"set '{needed.parameter}' in {source} to a topic of that type"


def _open(path: Path) -> Reader:
    try:
        return _open_existing(path)
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise OptionError(
            f"bag '{path}'", expected="a readable rosbag2", got=error.strerror or error
        ) from None


def _open_existing(path: Path) -> Reader:
    if not path.exists():
        raise OptionError(f"bag '{path}'", expected="a rosbag2 folder or file", got="nothing there")
    if path.is_dir() and not (path / "metadata.yaml").is_file():
        storage = sorted(p.name for p in path.iterdir() if p.suffix in (".mcap", ".db3"))
        raise OptionError(
            f"bag '{path}'",
            expected="a rosbag2 folder with metadata.yaml",
            got="none in it",
            remedy=f"give the file {path / storage[0]} itself, or run 'ros2 bag reindex'"
            if storage
            else "give the folder that 'ros2 bag record' wrote",
        )
    if path.is_file() and path.suffix not in (".mcap", ".db3"):
        raise OptionError(
            f"bag '{path}'",
            expected="a rosbag2 folder, an .mcap or a .db3 file",
            got=f"a '{path.suffix or path.name}' file",
            remedy="convert a ROS 1 bag with 'rosbags-convert'" if path.suffix == ".bag" else None,
        )
    try:
        reader = Reader(path)
        reader.open()
    except Exception as error:  # every storage and codec of rosbags has its own family
        raise OptionError(
            f"bag '{path}'",
            expected="a readable rosbag2",
            got=f"{type(error).__name__}: {error}",
            remedy="recover it with 'ros2 bag reindex', or record it again",
        ) from error
    return reader
