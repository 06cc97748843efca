"""Randomly damaged files of every format become failed rows: none of them fails the job."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from batchinference.pipeline.errors import JobFailure
from support.inputs.formats import CASES
from support.inputs.read_files import open_input
from support.tiers import examples

FILES = examples(400, 40)


def damaged(chance: random.Random, content: bytes) -> bytes:
    """Return the content with flipped bits, or with a part that is missing or repeated."""
    start, stop = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    kind = chance.choice(("flip", "truncate", "delete", "repeat", "overwrite"))
    if kind == "flip":
        flipped = bytearray(content)
        for _ in range(chance.choice((1, 2, 8, 64))):
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind == "overwrite":
        return content[:start] + chance.randbytes(8) + content[start + 8 :]
    middle = {"truncate": b"", "delete": content[stop:], "repeat": content[start:][:4096] * 2}
    return content[:start] + middle[kind] + (content[start:] if kind == "repeat" else b"")


@pytest.mark.scaled("fuzz")
@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("name", CASES)
def test_no_damaged_file_fails_a_job(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    case.write(tmp_path)
    files = sorted(path for path in tmp_path.iterdir() if path.is_file())
    for number in range(FILES):
        chance = random.Random(f"{name} {number}")
        whole = chance.choice(files)
        path = whole.with_name(f"damaged{''.join(whole.suffixes)}")
        path.write_bytes(damaged(chance, whole.read_bytes()))
        try:
            opened = open_input(case.format, path, **case.options)
            counted = opened.given.count()
            assert counted is None or counted.rows >= 0
            assert opened.read().batches, number
        except JobFailure:  # the job is refused with a cause
            pass
