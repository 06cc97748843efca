"""Create the input of this example: topics for haikus."""

from __future__ import annotations

import json
from pathlib import Path

TOPICS = ("rain in spring", "a slow train", "fresh bread", "the sea at night")


def main() -> None:
    directory = Path(__file__).resolve().parent / "data"
    directory.mkdir(exist_ok=True)
    lines = "".join(json.dumps({"topic": topic}) + "\n" for topic in TOPICS)
    (directory / "topics.jsonl").write_text(lines)


if __name__ == "__main__":
    main()
