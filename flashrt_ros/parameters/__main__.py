"""``python -m flashrt_ros.parameters`` prints docs/parameters.md."""

from .document import render_markdown

print(render_markdown(), end="")
