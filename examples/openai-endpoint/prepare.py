"""Create the input of this example: reviews in a CSV file."""

from __future__ import annotations

import csv
from itertools import product
from pathlib import Path

THINGS = ("The soup", "My new bicycle", "This film", "The hotel by the lake")
VERDICTS = ("was wonderful.", "broke after a day.", "is worth every penny.", "put me to sleep.")


def main() -> None:
    directory = Path(__file__).resolve().parent / "data"
    directory.mkdir(exist_ok=True)
    with (directory / "reviews.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "review"])
        reviews = (" ".join(words) for words in product(THINGS, VERDICTS))
        writer.writerows(enumerate(reviews))


if __name__ == "__main__":
    main()
