"""The messages and services: fields, error codes, and that what is installed is what is written."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from flashrt_core import errors

ROOT = Path(__file__).resolve().parents[1]
SERVICES = sorted(p.stem for p in (ROOT / "srv").glob("*.srv"))
MESSAGES = sorted(p.stem for p in (ROOT / "msg").glob("*.msg"))

# Codes that the node answers with on its own; all others are those of flashrt_core.errors.
NODE_CODES = {"NONE": 0, "WRONG_STATE": 80, "BUSY": 81, "TIMEOUT": 82, "STALE_INPUT": 83}

# A change here breaks whoever records or consumes the topic: give the message a new name instead.
FIELDS = {
    "ActionChunk": {
        "header": "std_msgs/Header",
        "policy": "string",
        "fingerprint": "string",
        "session": "string",
        "sequence": "uint64",
        "action_names": "sequence<string>",
        "action_kind": "string",
        "horizon": "uint32",
        "action_dim": "uint32",
        "data": "sequence<float>",
        "dt": "builtin_interfaces/Duration",
        "first_action_stamp": "builtin_interfaces/Time",
        "observation_age": "builtin_interfaces/Duration",
        "inference_time": "builtin_interfaces/Duration",
        "generated": "builtin_interfaces/Time",
    },
    "DecisionTiming": {
        "header": "std_msgs/Header",
        "session": "string",
        "sequence": "uint64",
        "ingest_ms": "float",
        "context_ms": "float",
        "action_ms": "float",
        "publish_ms": "float",
        "total_ms": "float",
        "observation_age_ms": "float",
    },
}


def response_constants(service: str) -> dict[str, int]:
    """Constants in the response part of an .srv file."""
    response = (ROOT / "srv" / f"{service}.srv").read_text().split("\n---\n")[1]
    pairs = re.findall(r"^uint16 ([A-Z_]+)=(\d+)", response, flags=re.MULTILINE)
    assert len(dict(pairs)) == len(pairs), f"{service} repeats a constant"
    return {name: int(number) for name, number in pairs}


def core_codes() -> dict[str, int]:
    """Constant name and number of every error class: ``StaleStateError`` -> ``STALE_STATE``."""
    codes = {"INTERNAL": errors.FlashRTError.code}
    for name, value in vars(errors).items():
        subclass = isinstance(value, type) and issubclass(value, errors.FlashRTError)
        if subclass and value is not errors.FlashRTError:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error"))
            codes[words.upper()] = value.code
    return codes


def installed_share() -> Path | None:
    """Share folder of the interfaces that this Python imports."""
    prefixes = [*os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep), sys.prefix]
    for prefix in prefixes:
        share = Path(prefix) / "share" / "flashrt_ros"
        if prefix and (share / "msg").is_dir():
            return share
    return None


def test_every_service_lists_the_codes_of_the_core_and_the_node() -> None:
    expected = core_codes() | NODE_CODES
    assert len(expected) > 15
    assert len(set(expected.values())) == len(expected), "two errors share a number"
    for service in SERVICES:
        assert response_constants(service) == expected, service


def test_error_block_is_the_same_text_in_every_service() -> None:
    blocks = set()
    for service in SERVICES:
        response = (ROOT / "srv" / f"{service}.srv").read_text().split("\n---\n")[1]
        end = response.index("string error_msg")
        blocks.add(response[:end])
    assert len(blocks) == 1


def test_every_field_is_explained() -> None:
    for path in [*ROOT.glob("msg/*.msg"), *ROOT.glob("srv/*.srv")]:
        for block in re.split(r"\n\n|\n---\n", path.read_text()):
            assert block.lstrip().startswith("#"), f"{path.name}: no comment above\n{block}"


@pytest.mark.ros
@pytest.mark.parametrize("message", MESSAGES)
def test_fields_of_the_generated_message(message: str) -> None:
    module = pytest.importorskip("flashrt_ros.msg", reason="interfaces are not built")
    assert getattr(module, message).get_fields_and_field_types() == FIELDS[message]


@pytest.mark.ros
@pytest.mark.parametrize("service", SERVICES)
def test_constants_of_the_generated_service(service: str) -> None:
    module = pytest.importorskip("flashrt_ros.srv", reason="interfaces are not built")
    response = getattr(module, service).Response
    for name, number in response_constants(service).items():
        assert getattr(response, name) == number
    fields = response.get_fields_and_field_types()
    assert fields["error_code"] == "uint16"
    assert fields["error_msg"] == "string"
    assert (response().error_code, response().error_msg) == (0, "")


@pytest.mark.ros
def test_installed_interfaces_are_those_of_this_source() -> None:
    share = installed_share()
    if share is None:
        pytest.skip("interfaces are not built")
    for kind in ("msg", "srv"):
        source = {p.name: p.read_text() for p in (ROOT / kind).glob(f"*.{kind}")}
        installed = {p.name: p.read_text() for p in (share / kind).glob(f"*.{kind}")}
        assert installed == source, "rebuild the interfaces"


@pytest.mark.ros
@pytest.mark.parametrize("message", MESSAGES)
def test_type_hash_equals_that_of_an_independent_reader(message: str) -> None:
    """A bag written from the .msg text and a live topic must be one type to every tool."""
    typesys = pytest.importorskip("rosbags.typesys")
    share = installed_share()
    if share is None:
        pytest.skip("interfaces are not built")
    name = f"flashrt_ros/msg/{message}"
    described = json.loads((share / "msg" / f"{message}.json").read_text())
    built = {entry["type_name"]: entry["hash_string"] for entry in described["type_hashes"]}
    store = typesys.get_typestore(typesys.Stores.ROS2_KILTED)
    text = (ROOT / "msg" / f"{message}.msg").read_text()
    store.register(typesys.get_types_from_msg(text, name))
    assert store.hash_rihs01(name) == built[name]


@pytest.mark.ros
def test_generated_modules_do_not_shadow_the_checkout() -> None:
    pytest.importorskip("flashrt_ros.msg", reason="interfaces are not built")
    module = importlib.import_module("flashrt_ros.paths")
    assert Path(module.__file__ or "").parent == ROOT / "flashrt_ros"
