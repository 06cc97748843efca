"""Mutated jobs: valid ones in which a few values are replaced, from a seed."""

from __future__ import annotations

from random import Random
from typing import Any

from support.documents.minimal import Document
from support.documents.refusals import valid_documents
from support.documents.variations import REMOVED, at, changed, keys_in

MARK = "MUTATION_MARK"
"""No file of this name may be created, and no command may contain the word."""
INJECTIONS = (
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"'; touch {MARK} #",
    f'"; touch {MARK} #',
    f"x && touch {MARK}",
    f"x\ntouch {MARK}\n",
    f"| touch {MARK}",
    f"--{MARK}=1",
    f"../../{MARK}",
    f"$({MARK})",
    f"${{{MARK}}}",
    f"{{{{ .{MARK} }}}}",
    f"{MARK}: [1",
    f"%s%n{{{MARK}}}",
)
NUMBERS = (0, 1, -1, 2, 3, 0.5, -0.5, 1e-9, 1e308, 255, 256, 1024, 10**6, 2**31, 2**63 - 1, 2**63)
TEXTS = (
    "", " ", "a", "A", "é", "größe", "\u202etxt", "\U0001f469\u200d\U0001f52c", "\x00", "\x1b[2J",
    "x" * 63, "x" * 64, "x" * 254, "x" * 5000, "yes", "null", "1", "1e9", "8Gi", "-1Gi", "9Ei",
    "s3://in/", "s3://", "file:///", "/data", "hf://x", "m:C", "a > 1", "Exists", "spec",
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    True, False, None, [], {}, [[]], [{}], [None], {"": ""}, {"a": "b"}, ["a", "a"], ["a"] * 300,
    {"name": "a", "value": "b"}, {f"k{n}": n for n in range(300)},
)  # fmt: skip
_BASES = list(valid_documents().values())


def mutated_job(seed: int) -> Document:
    """Return a job that may be invalid. The same seed gives the same job."""
    random = Random(seed)
    body = changed(random.choice(_BASES), ("metadata", "name"), f"mutated-{seed}")
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 5))):
        body = _changed(body, random)
    return body


def _changed(body: Document, random: Random) -> Document:
    choices = list(keys_in(body))
    if not choices:
        return body
    keys = random.choice(choices)
    value = _worse(at(body, keys), random)
    if isinstance(keys[-1], str) and random.random() < 0.1:
        keys = (*keys[:-1], random.choice((*INJECTIONS, *TEXTS)))
    if value is REMOVED and keys not in choices:
        return body
    return changed(body, keys, value)


def _worse(value: Any, random: Random) -> Any:
    kinds: tuple[Any, ...] = (INJECTIONS, INJECTIONS, TEXTS, NUMBERS, SHAPES, (REMOVED,))
    if random.random() < 0.5 and isinstance(value, str):
        return value + random.choice((*INJECTIONS, *TEXTS))
    if random.random() < 0.5 and isinstance(value, int | float) and not isinstance(value, bool):
        return random.choice(NUMBERS)
    if random.random() < 0.3 and isinstance(value, list) and value:
        return [*value, random.choice(value)]
    return random.choice(random.choice(kinds))
