"""Documents and the Foxglove layout name what is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashrt_ros.parameters.table import TABLE

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: Of the node's parameters, whatever the group; what looks like one and is another thing.
_NAMES = {re.sub(r"<\w+>", "*", row.name) for row in TABLE}
_GROUPS = ("execution.", "output.", "limits.", "safe.", "sync.", "joints.", "action.")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_page_on_policies_names_all_that_they_share() -> None:
    page = (ROOT / "docs" / "add_a_policy.md").read_text()
    for file in (ROOT / "flashrt_core" / "policies").glob("[a-z]*.py"):
        assert f"{file.name}`" in page or f"/{file.name})" in page, file.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_parameters_are_called_by_their_names(page: Path) -> None:
    """In code between backquotes: ``group.name``, perhaps with a value behind it."""
    for text in re.findall(r"`([a-z_]+\.[a-z_.]+)(?::[^`]*)?`", page.read_text()):
        if text.startswith(_GROUPS) and not re.search(r"\.(yaml|json|md|py|h)$", text):
            assert text in _NAMES, f"{page.name} names {text}"


def paths(value: Any) -> Iterator[str]:
    """Every topic, or path into a message, that a layout names."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in ("value", "imageTopic", "topicToRender") and isinstance(each, str):
                yield each
            else:
                yield from paths(each)
    elif isinstance(value, list):
        for each in value:
            yield from paths(each)


def panels(value: Any) -> Iterator[str]:
    """Leaves of the layout's tree."""
    if isinstance(value, str):
        yield value
    else:
        yield from panels(value["first"])
        yield from panels(value["second"])


def test_the_foxglove_layout_shows_topics_of_the_tiny_deployment() -> None:
    layout = json.loads((ROOT / "config" / "foxglove.json").read_text())
    assert sorted(panels(layout["layout"])) == sorted(layout["configById"])
    given = yaml.safe_load((ROOT / "config" / "pi05_tiny.yaml").read_text())["/**"][
        "ros__parameters"
    ]
    topics = {f"/{group['topic']}" for group in given["camera"].values()}
    topics |= {"/joint_states", "/diagnostics"}
    fields = {
        f"/policy/{topic}.{name}"
        for topic, file in (("decision_timing", "DecisionTiming"), ("action_chunk", "ActionChunk"))
        for name in re.findall(r"^[\w/\[\]]+ (\w+)$", (ROOT / f"msg/{file}.msg").read_text(), re.M)
    } | {"/joint_states.position"}
    for path in paths(layout["configById"]):
        assert path in topics or path.partition("[")[0] in fields, path
