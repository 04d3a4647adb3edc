"""Bags as rosbag2 of other distributions writes them: metadata and storage of every version.

Version history of metadata.yaml: 4 QoS as a YAML text with numbers, 5 files, 6 custom data, 7 type
hashes, 8 distribution, 9 QoS as a list with names. sqlite3 schemas: 2 QoS, 3 metadata table, 4
message definitions. Source: rosbag2_storage and its sqlite3 plugin, from Foxy to Kilted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from backports import zstd
from rosbags.interfaces import (
    Qos,
    QosDurability,
    QosHistory,
    QosLiveliness,
    QosReliability,
    QosTime,
)
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from flashrt_ros.replay.bag import Bag, Message

STORE = get_typestore(Stores.ROS2_HUMBLE)
FOREVER = {"sec": 9223372036, "nsec": 854775807}
NUMBERS = {"history": 3, "depth": 0, "reliability": 1, "durability": 2, "deadline": FOREVER,
           "lifespan": FOREVER, "liveliness": 1, "liveliness_lease_duration": FOREVER,
           "avoid_ros_namespace_conventions": False}  # fmt: skip
NAMES = NUMBERS | {"history": "unknown", "reliability": "reliable", "durability": "volatile",
                   "liveliness": "automatic"}  # fmt: skip
_TIME = QosTime(9223372036, 854775807)
AS_QOS = Qos(QosHistory.UNKNOWN, 0, QosReliability.RELIABLE, QosDurability.VOLATILE, _TIME, _TIME,
             QosLiveliness.AUTOMATIC, _TIME, False)  # fmt: skip


@dataclass(frozen=True)
class Style:
    """How a bag is written.

    ``compression`` is "", "file", "message" or "chunk"; ``stored_qos`` False leaves the storage
    without the QoS that metadata.yaml has, as a reindexed bag may be.
    """

    version: int = 9
    storage: str = "sqlite3"
    compression: str = ""
    parts: int = 1
    stored_qos: bool = True

    def __str__(self) -> str:
        qos = "" if self.stored_qos else "-reindexed"
        return f"v{self.version}-{self.storage}-{self.compression or 'plain'}-{self.parts}{qos}"


def foreign_bag(path: Path, source: Path, style: Style) -> Path:
    """The messages of ``source`` in a folder that was written in that style."""
    with Bag(source) as bag:
        topics = {topic.name: topic.msgtype for topic in bag.topics.values()}
        messages = list(bag.messages(list(topics)))
    # Recorders list topics as they are discovered, in no order of ours.
    topics = dict(sorted(topics.items(), reverse=True))
    path.mkdir(parents=True)
    size = -(-len(messages) // style.parts)
    groups = [messages[at : at + size] for at in range(0, len(messages), size)]
    files = [_write(path, index, group, topics, style) for index, group in enumerate(groups)]
    information = _information(files, groups, topics, style)
    text = yaml.safe_dump({"rosbag2_bagfile_information": information}, sort_keys=False)
    (path / "metadata.yaml").write_text(text)
    return path


def _write(
    path: Path, index: int, messages: Sequence[Message], topics: dict[str, str], style: Style
) -> str:
    name = f"{path.name}_{index}"
    if style.storage == "sqlite3" and style.version < 8:
        file = path / f"{name}.db3"
        _old_sqlite(file, messages, topics, style)
    else:
        file = _by_writer(path, name, messages, topics, style)
    if style.compression != "file":
        return file.name
    packed = file.with_name(f"{file.name}.zstd")
    packed.write_bytes(zstd.compress(file.read_bytes()))
    file.unlink()
    return packed.name


def _by_writer(
    path: Path, name: str, messages: Sequence[Message], topics: dict[str, str], style: Style
) -> Path:
    mcap = style.storage == "mcap"
    folder = path / "in_work" / name
    version: Any = max(8, style.version)
    plugin = StoragePlugin.MCAP if mcap else StoragePlugin.SQLITE3
    writer = Writer(folder, version=version, storage_plugin=plugin)
    if style.compression == "chunk":
        writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
    qos = [AS_QOS] if style.stored_qos else []
    with writer:
        links = {
            topic: writer.add_connection(topic, kind, typestore=STORE, offered_qos_profiles=qos)
            for topic, kind in topics.items()
        }
        for message in messages:
            writer.write(links[message.topic], message.time_ns, _packed(message.data, style))
    (made,) = [each for each in folder.iterdir() if each.suffix in (".mcap", ".db3")]
    target = path / f"{name}{made.suffix}"
    made.rename(target)
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()
    folder.parent.rmdir()
    return target


def _old_sqlite(
    file: Path, messages: Sequence[Message], topics: dict[str, str], style: Style
) -> None:
    with sqlite3.connect(file) as base:
        base.executescript(
            "CREATE TABLE topics(id INTEGER PRIMARY KEY,name TEXT NOT NULL,type TEXT NOT NULL,"
            "serialization_format TEXT NOT NULL,offered_qos_profiles TEXT NOT NULL);"
            "CREATE TABLE messages(id INTEGER PRIMARY KEY,topic_id INTEGER NOT NULL,"
            "timestamp INTEGER NOT NULL, data BLOB NOT NULL);"
            "CREATE INDEX timestamp_idx ON messages (timestamp ASC);"
        )
        if style.version >= 5:
            base.executescript(
                "CREATE TABLE schema(schema_version INTEGER PRIMARY KEY,ros_distro TEXT NOT NULL);"
                "CREATE TABLE metadata(id INTEGER PRIMARY KEY,metadata_version INTEGER NOT NULL,"
                "metadata TEXT NOT NULL);"
                "INSERT INTO schema VALUES (3, 'humble');"
            )
        qos = yaml.safe_dump([NUMBERS]) if style.stored_qos else ""
        ids = {topic: number for number, topic in enumerate(topics, 1)}
        for topic, kind in topics.items():
            base.execute(
                "INSERT INTO topics VALUES(?, ?, ?, 'cdr', ?)", (ids[topic], topic, kind, qos)
            )
        base.executemany(
            "INSERT INTO messages (topic_id, timestamp, data) VALUES(?, ?, ?)",
            [(ids[m.topic], m.time_ns, _packed(m.data, style)) for m in messages],
        )
    base.close()


def _packed(data: bytes, style: Style) -> bytes:
    return zstd.compress(data) if style.compression == "message" else data


def _information(
    files: Sequence[str],
    groups: Sequence[Sequence[Message]],
    topics: dict[str, str],
    style: Style,
) -> dict[str, Any]:
    every = [message for group in groups for message in group]
    mode = style.compression if style.compression in ("file", "message") else ""
    information: dict[str, Any] = {
        "version": style.version,
        "storage_identifier": style.storage,
        "duration": {"nanoseconds": every[-1].time_ns - every[0].time_ns},
        "starting_time": {"nanoseconds_since_epoch": every[0].time_ns},
        "message_count": len(every),
        "topics_with_message_count": [
            {
                "topic_metadata": _topic(topic, kind, style),
                "message_count": sum(m.topic == topic for m in every),
            }
            for topic, kind in topics.items()
        ],
        "compression_format": "zstd" if mode else "",
        "compression_mode": mode.upper(),
        "relative_file_paths": list(files),
    }
    if style.version >= 5:
        information["files"] = [
            {
                "path": name,
                "starting_time": {"nanoseconds_since_epoch": group[0].time_ns},
                "duration": {"nanoseconds": group[-1].time_ns - group[0].time_ns},
                "message_count": len(group),
            }
            for name, group in zip(files, groups, strict=True)
        ]
    if style.version >= 6:
        information["custom_data"] = None
    if style.version >= 8:
        information["ros_distro"] = "jazzy"
    return information


def _topic(topic: str, kind: str, style: Style) -> dict[str, Any]:
    known: dict[str, Any] = {"name": topic, "type": kind, "serialization_format": "cdr"}
    known["offered_qos_profiles"] = [NAMES] if style.version >= 9 else yaml.safe_dump([NUMBERS])
    if style.version >= 7:
        known["type_description_hash"] = STORE.hash_rihs01(kind)
    return known
