"""Trains the small text encodings that ship with policies, from the text below.

For π0.5 a SentencePiece model: the real one is PaliGemma's, this one has its shape (same special
ids, byte fallback, no normalisation, no dummy prefix) at 1/250 of the size. With ``--bpe`` a
tokenizer.json for GR00T N1.7, in the shape of Qwen's byte-level BPE. Both are for demos and tests
with random weights.

Run: python tools/train_tiny_tokenizer.py [--bpe] [OUTPUT]
"""

from __future__ import annotations

import at_once  # noqa: F401  (first: it answers signals)

# isort: split
import io
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import toolbox  # noqa: E402

from flashrt_core.outputs import whole_file  # noqa: E402
from flashrt_core.policies.groot_n17.tokenizer import LETTERS, split  # noqa: E402

VOCAB = 1024
OUTPUT = ROOT / "flashrt_core/policies/pi05/tiny_tokenizer.model"
BPE_OUTPUT = ROOT / "flashrt_core/policies/groot_n17/tiny_tokenizer.json"
#: Tokens that no text becomes, behind all pieces.
ADDED = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|image_pad|>"),
)


def _split(text: str) -> list[str]:
    return text.split("|")


VERBS = _split(
    "pick up|place|put|push|pull|lift|lower|open|close|turn on|turn off|stack|pour|wipe|fold|"
    "move|grasp|release|insert|rotate|slide|press|hand over|sort|hang|unplug|plug in|screw|"
    "unscrew|stir|sweep|clean|load|unload|bring|take|drop|hold|shake|align|reach for|"
    "point at|collect|fetch"
)
COLOURS = _split(
    "red|blue|green|yellow|black|white|orange|purple|grey|brown|pink|silver|transparent|"
    "wooden|small|large|empty|full|left|right|upper|lower|first|second|third|nearest"
)
OBJECTS = _split(
    "block|cube|cup|mug|bowl|plate|spoon|fork|knife|bottle|can|box|lid|pot|pan|kettle|drawer|"
    "door|cabinet|shelf|basket|tray|towel|cloth|shirt|sock|book|pen|marker|eraser|tape|"
    "screwdriver|hammer|wrench|bolt|nut|gear|cable|plug|socket|switch|button|lever|handle|"
    "knob|faucet|sponge|brush|banana|apple|lemon|carrot|potato|onion|tomato|bread|cheese|"
    "milk|butter|soup|sauce|toy|ball|puzzle piece|battery|phone|charger|lamp|chair|stool|bin|"
    "bag|envelope|package|part|tool"
)
PLACES = _split(
    "on the table|in the box|into the drawer|on the plate|next to the bowl|behind the cup|"
    "in front of the camera|on top of the shelf|under the lamp|inside the cabinet|"
    "at the corner|to the robot base|over the sink|between the two blocks|on the conveyor|"
    "in the dishwasher|onto the stove|beside the microwave|toward the edge|"
    "away from the person|back to its place"
)
ENDINGS = _split(
    "||| and then stop| slowly| carefully| with both arms| with the left gripper|"
    " without spilling| and close it| before the timer ends| after that return home| please|"
    " again| until it clicks"
)
TASKS = _split(
    "the quick check of every joint and sensor is done before the robot starts to work|"
    "when the object is not visible wait for the next image and look around|"
    "if you can not find it ask for help|keep the gripper level while you carry the water|"
    "make a cup of coffee|set the table for dinner|tidy up the kitchen|pack the groceries|"
    "assemble the gearbox|sort the laundry by colour|water the plants|change the battery|"
    "this is a test of the emergency stop"
)


def sentences() -> Iterator[str]:
    """Instructions, and prompts as the policy writes them; the same on every run."""
    generator = random.Random(20240501)
    for index in range(12000):
        task = (
            generator.choice(TASKS)
            if index % 12 == 0
            else f"{generator.choice(VERBS)} the {generator.choice(COLOURS)} "
            f"{generator.choice(OBJECTS)} {generator.choice(PLACES)}{generator.choice(ENDINGS)}"
        )
        yield task.capitalize() if index % 5 == 0 else task
        # Every bin as often as every other, so that each becomes one piece; without the semicolon
        # behind the state, so that none becomes one piece with it.
        state = [str((index * 8 + offset) % 256) for offset in range(8)]
        state.insert(index % 9, "-1")
        yield f"Task: {task}, State: {' '.join(state)}"
        yield "Action: "
    yield from (chr(code) for code in range(33, 127))


def train() -> bytes:
    """The serialised model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences(),
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCAB,
        pad_id=0,
        eos_id=1,
        bos_id=2,
        unk_id=3,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        user_defined_symbols=["\n"],
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def train_bpe() -> bytes:
    """The text of a tokenizer.json: the 256 bytes, then the most frequent pair again and again."""
    pieces: Counter[tuple[str, ...]] = Counter()
    texts = (text.lower() for text in sentences() if "state:" not in text.lower())
    for text in (*texts, *["user"] * 100):  # the chat's role is one piece, as in Qwen's
        for piece in split(text):
            pieces[tuple(LETTERS[byte] for byte in piece.encode())] += 1
    vocabulary = sorted(LETTERS.values())
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < VOCAB - len(ADDED):
        pairs: Counter[tuple[str, str]] = Counter()
        for parts, count in pieces.items():
            for pair in pairwise(parts):
                pairs[pair] += count
        if not pairs:  # every piece of the text is whole
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        vocabulary.append("".join(best))
        merged: Counter[tuple[str, ...]] = Counter()
        for parts, count in pieces.items():
            merged[_merge(parts, best)] += count
        pieces = merged
    added = [
        {"id": len(vocabulary) + index, "content": content, "special": True}
        for index, content in enumerate(ADDED)
    ]
    model = {
        "type": "BPE",
        "vocab": {piece: index for index, piece in enumerate(vocabulary)},
        "merges": [list(pair) for pair in merges],
    }
    content = {"version": "1.0", "added_tokens": added, "model": model}
    return json.dumps(content, ensure_ascii=False, indent=0).encode() + b"\n"


def _merge(parts: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for part in parts:
        if found and (found[-1], part) == pair:
            found[-1] += part
        else:
            found.append(part)
    return tuple(found)


def main() -> None:
    """Writes the model and says how large it is."""
    parser = toolbox.Parser(__doc__)
    parser.add_argument("--bpe", action="store_true", help="that of GR00T N1.7")
    parser.add_argument("output", nargs="?", type=toolbox.writable)
    options = parser.parse_args()
    output = options.output or toolbox.writable(str(BPE_OUTPUT if options.bpe else OUTPUT))
    model = train_bpe() if options.bpe else train()
    with whole_file("model", output) as part:
        part.write_bytes(model)
    print(f"{output}: {len(model)} bytes, up to {VOCAB} pieces")


if __name__ == "__main__":
    toolbox.run(main, "train_tiny_tokenizer")
