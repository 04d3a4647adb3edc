"""Makes docs/interfaces.md, the reference of messages and services, from msg/ and srv/.

python tools/interface_docs.py            # write
python tools/interface_docs.py --check    # exit status 1 where the page differs from the files
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from toolbox import Parser, ToolError, run  # noqa: E402

from flashrt_core.outputs import write_text  # noqa: E402

PAGE = "docs/interfaces.md"
_FIELD = re.compile(
    r"(?P<kind>[\w/\[\]<=]+)\s+(?P<name>\w+)(?:\s*=\s*(?P<value>\S+))?\s*(?:#\s*(?P<doc>.*))?"
)
#: In every response; told once, at the end of the page.
_OUTCOME = ("error_code", "error_msg")
_INTRODUCTION = """# Messages and services

Generated from `msg/` and `srv/`: `python tools/interface_docs.py`. Where the node offers them,
with which QoS and in which state: [node.md](node.md). Every response begins with `error_code` and
`error_msg` ([below](#error-codes)); its other fields mean something only where that is `NONE`.
"""


@dataclass(frozen=True)
class Field:
    """A line of an interface file; a constant where ``value`` is not empty."""

    kind: str
    name: str
    value: str
    doc: str


@dataclass(frozen=True)
class Part:
    """A message, a request or a response: what is said of it, and its fields."""

    doc: str
    fields: tuple[Field, ...]


def parse(text: str, place: str) -> list[Part]:
    """The parts of a file, separated by ``---``; ToolError on a line that is no field.

    A comment belongs to the fields behind it, up to an empty line; the first one, if an empty line
    follows, to the part.
    """
    return [
        _part(lines.strip("\n").split("\n"), place)
        for lines in re.split(r"^---$", text, flags=re.M)
    ]


def _part(lines: list[str], place: str) -> Part:
    about, fresh = "", True
    said: list[str] = []
    fields: list[Field] = []
    for line in lines:
        if line.startswith("#"):
            if not fresh:
                said, fresh = [], True
            said.append(line[1:].strip())
        elif not line.strip():
            if not fields and not about and fresh:
                about = " ".join(said)
            said, fresh = [], True
        else:
            match = _FIELD.fullmatch(line.strip())
            if match is None:
                raise ToolError(place, expected="a field", got=repr(line))
            doc = match["doc"] or " ".join(said)
            fields.append(Field(match["kind"], match["name"], match["value"] or "", doc))
    return Part(about, tuple(fields))


def page(root: Path) -> str:
    """The whole page."""
    lines = [_INTRODUCTION]
    codes: dict[str, Field] = {}
    for kind, title in (("msg", "Messages"), ("srv", "Services")):
        lines.append(f"## {title}\n")
        for path in sorted((root / kind).glob(f"*.{kind}")):
            parts = parse(path.read_text(encoding="utf-8"), str(path.relative_to(root)))
            lines += [f"### {path.stem}\n", f"{parts[0].doc}\n" if parts[0].doc else ""]
            names = ("",) if kind == "msg" else ("Request", "Response")
            for name, part in zip(names, parts, strict=True):
                codes |= {each.name: each for each in part.fields if each.value}
                lines += _table(
                    name, [f for f in part.fields if not f.value and f.name not in _OUTCOME]
                )
    lines.append("## Error codes\n")
    lines.append(
        "Numbers of `flashrt_core.errors`, the same in every service; none changes its meaning.\n"
    )
    lines += ["| number | name | meaning |", "| --- | --- | --- |"]
    for each in sorted(codes.values(), key=lambda code: int(code.value)):
        doc = each.doc if int(each.value) else "it did not fail"
        lines.append(f"| {each.value} | `{each.name}` | {_cell(doc)} |")
    text = "\n".join(line for line in lines if line != "") + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def _table(name: str, fields: list[Field]) -> Iterator[str]:
    head = name or "Fields"
    if not fields:
        yield f"{head}: nothing further.\n"
        return
    yield f"{head}:\n\n| field | type | meaning |\n| --- | --- | --- |"
    for each in fields:
        yield f"| `{each.name}` | {_cell(each.kind)} | {_cell(each.doc)} |"
    yield "\n"  # a line of its own


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("<", r"\<")


def main() -> int:
    """Command line; 0 when the page says what the files say."""
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    made = page(ROOT)
    if parser.parse_args().check:
        if (ROOT / PAGE).read_text(encoding="utf-8") != made:
            print(f"{PAGE} differs from msg/ and srv/; run python tools/interface_docs.py")
            return 1
        return 0
    write_text(made, ROOT / PAGE)
    return 0


if __name__ == "__main__":
    run(main, "interface_docs")
