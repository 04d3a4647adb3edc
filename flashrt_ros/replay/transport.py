"""Which DDS graph a replay talks on, and how its images survive the loopback.

A demo or a replay must never reach a robot that happens to share the network: by default it takes a
domain that nothing on this host uses and discovers on this host only.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from flashrt_core.errors import OptionError
from flashrt_ros.log_folder import ensure_log_folder
from flashrt_ros.paths import config_file, share_directory, shipped_folder

# Above 101 the ports of a domain reach into the range that Linux hands out to clients.
_DOMAINS = range(1, 102)
_PROFILES = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
_BOOTSTRAPPED = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"
_SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Graph:
    """A DDS domain; ``private`` ones are discovered on this host only."""

    domain: int
    private: bool

    def enter(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Put this process, and the children it starts, on the graph; before any rclpy context.

        Raises:
            OptionError: there is no folder for the logs of ROS.
        """
        environment["ROS_DOMAIN_ID"] = str(self.domain)
        ensure_log_folder(environment)
        if self.private:
            environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
            environment.pop("ROS_STATIC_PEERS", None)


def choose_graph(domain: int | None = None) -> Graph:
    """The graph of ``domain``, as discovery is configured for it; a private one where None.

    Raises:
        OptionError: a domain outside 0..232.
    """
    if domain is not None:
        if not 0 <= domain <= 232:
            raise OptionError("DDS domain", expected="0..232", got=domain)
        return Graph(domain, private=False)
    taken = os.environ.get("ROS_DOMAIN_ID", "0")
    order = [d for d in _DOMAINS if str(d) != taken]
    random.SystemRandom().shuffle(order)
    free = next((d for d in order if _unused(d)), order[0])
    return Graph(free, private=True)


def _unused(domain: int) -> bool:
    """Whether no participant of this host holds the first unicast port of ``domain``."""
    # RTPS 2.5, 9.6.1.1: port base 7400, gain 250 a domain, offset 10 for the first participant.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(("", 7400 + 250 * domain + 10))
        except OSError:
            return False
    return True


def use_shared_memory(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Give this process a shared-memory segment that holds camera images; before any context.

    The default segment of Fast DDS (512 KiB) is smaller than one 640 x 480 image, and a publisher
    without more loses most frames on the loopback. The segment belongs to the publisher.

    Returns:
        A sentence on why images may be lost, or None when all is well.
    """
    if environment.get("RMW_IMPLEMENTATION", "rmw_fastrtps_cpp") != "rmw_fastrtps_cpp":
        return None
    if any(environment.get(name) for name in _PROFILES):
        return None
    profile = config_file_or_none("fastdds_shm.xml")
    if profile is None:
        return "config/fastdds_shm.xml is not installed: large images may be lost on the loopback"
    need, free = _segment_bytes(profile), shutil.disk_usage(_SHM).free if _SHM.is_dir() else 0
    if free < need:
        return (
            f"{_SHM} has {free >> 20} MiB free, the profile for camera images wants {need >> 20}: "
            "large images may be lost (in a container, start it with --shm-size=256m)"
        )
    environment[_PROFILES[0]] = str(profile)
    return None


def config_file_or_none(name: str) -> Path | None:
    """``config/<name>`` of this package, or None where it is not installed."""
    path = share_directory() / "config" / name
    return path if path.is_file() else None


def default_parameters() -> Path:
    """The parameter file of a synthetic demo."""
    return config_file("pi05_tiny.yaml")


@dataclass(frozen=True)
class ShippedDemo:
    """A recording of the simulated task, and the parameter file of the policy trained for it."""

    recording: Path
    parameters: Path


def shipped_demo() -> ShippedDemo | None:
    """What ships with this installation; None where recording or policy does not."""
    recording = shipped_folder("examples", "tabletop", "demo")
    if recording is None or shipped_folder("examples", "tabletop", "policy") is None:
        return None
    return ShippedDemo(recording, config_file("pi05_tabletop.yaml"))


def _segment_bytes(profile: Path) -> int:
    root = ElementTree.parse(profile).getroot()
    sizes = [int(e.text or 0) for e in root.iter() if e.tag.rpartition("}")[2] == "segment_size"]
    return max(sizes, default=0)


def child_environment(parent: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment for a node started from here.

    ROS 2 from pip starts every interpreter a second time with the library folders of its own
    environment, and marks that as done; a child of another interpreter would keep the mark and the
    wrong folders. So both go, and what the user put on the library path stays. The profile of this
    publisher goes too: a node that publishes action chunks needs no large segment.
    """
    environment = dict(parent)
    if environment.pop(_BOOTSTRAPPED, None):
        kept = [p for p in environment.pop("LD_LIBRARY_PATH", "").split(":") if not _from_wheels(p)]
        if kept:
            environment["LD_LIBRARY_PATH"] = ":".join(kept)
    profile = config_file_or_none("fastdds_shm.xml")
    if profile is not None and environment.get(_PROFILES[0]) == str(profile):
        del environment[_PROFILES[0]]
    return environment


def _from_wheels(folder: str) -> bool:
    path = Path(folder)
    return not folder or path.name.endswith(".libs") or (path.parent / "pyvenv.cfg").is_file()
