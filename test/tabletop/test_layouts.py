"""What seeds choose: scenes that can be done, all instructions, the same each time."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import combinations
from math import hypot
from pathlib import Path

from tabletop import TASK
from tabletop.layout import APART, BLOCK, INSTRUCTIONS, REGION, SIDES, Layout, make_layout

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LAYOUTS = [make_layout(seed) for seed in range(400)]


def test_the_task_is_known_without_mujoco() -> None:
    code = "import sys, tabletop; print(len(tabletop.TASK.joint_names), 'mujoco' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLES, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["7", "False"]
    assert TASK.instructions == INSTRUCTIONS and len(set(INSTRUCTIONS)) == 8


def test_each_instruction_is_as_likely_as_the_others() -> None:
    counts = Counter(layout.instruction for layout in LAYOUTS)
    assert set(counts) == set(INSTRUCTIONS)
    assert min(counts.values()) > len(LAYOUTS) / 8 / 2
    assert {len(layout.blocks) for layout in LAYOUTS} == {2, 3, 4}


def test_the_way_of_the_named_block_is_free() -> None:
    for seed, layout in enumerate(LAYOUTS):
        assert layout.colour in layout.blocks
        for x, y, _ in layout.blocks.values():
            assert REGION[0][0] <= x <= REGION[0][1] and REGION[1][0] <= y <= REGION[1][1]
        for one, other in combinations(layout.blocks.values(), 2):
            assert hypot(one[0] - other[0], one[1] - other[1]) >= APART, seed
        assert not in_the_way(layout), seed


def in_the_way(layout: Layout) -> list[str]:
    """Blocks that the named one would meet within 8 cm."""
    x, y, _ = layout.blocks[layout.colour]
    return [
        name
        for name, (other_x, other_y, _) in layout.blocks.items()
        if name != layout.colour
        and 0 < (other_y - y) * SIDES[layout.side] < 0.08 + BLOCK
        and abs(other_x - x) < BLOCK * 1.4  # the diagonals of both
    ]


def test_a_seed_always_gives_the_same() -> None:
    for seed in (0, 7, 200_000):
        one, other = make_layout(seed), make_layout(seed)
        assert one.blocks == other.blocks and one.instruction == other.instruction
        assert (one.tool == other.tool).all() and (one.light[0] == other.light[0]).all()
    assert make_layout(0).blocks != make_layout(1).blocks
