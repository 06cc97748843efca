"""Create the input of this example: a few topics of the Python documentation."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path

TOPICS = 12


def main() -> None:
    directory = Path(__file__).resolve().parent / "data"
    directory.mkdir(exist_ok=True)
    for name, text in sorted(pydoc_data.topics.topics.items())[:TOPICS]:
        (directory / f"{name}.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
