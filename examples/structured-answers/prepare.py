"""Create the input of this example: reviews in a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

REVIEWS = ("The soup was wonderful.", "My new bicycle broke after a day.", "It put me to sleep.")


def main() -> None:
    directory = Path(__file__).resolve().parent / "data"
    directory.mkdir(exist_ok=True)
    lines = [json.dumps({"id": id_, "review": review}) for id_, review in enumerate(REVIEWS)]
    (directory / "reviews.jsonl").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
