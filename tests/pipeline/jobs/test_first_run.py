"""A first run: a shell runs the commands of the README over pictures and a CSV file of the user.

Small models stand in for those of the Hugging Face Hub, in its cache. docs/first-run.md is a
recording, which RECORDER writes.
"""

from __future__ import annotations

import csv
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from landing.calibration import machine_factor, measured_seconds
from support.documents.pages import ROOT, blocks
from support.documents.recordings import Shown, compare_with_page, masked, page_of, thinned
from support.inputs.photographs import photograph
from support.jobs.command import PROGRAM, Command
from support.models.hub_cache import add_to_hub_cache
from support.outputs.rows import rows_of
from support.timeouts import scaled

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("first-run")]
"""The fixture `recording` starts Ray twice."""
long = pytest.mark.long("first-run")
PAGE = "docs/first-run.md"
RECORDER = (
    "python -m pytest tests/pipeline/jobs/test_first_run.py --long first-run --write-first-run"
)
HEAD = """# A first run on your own data

These are the commands of the [README](../README.md#on-your-machine), after `make demo`, and what
they print. The home directory has 120 pictures, one of which is damaged, and a CSV file with 150
reviews. Small models that were trained for this page stand in for those of the Hugging Face Hub. A
test runs the same commands and compares what they print with this page.

Afterwards, `batchinference errors ./out` shows why rows have failed. `batchinference verify ./out`
proves that each row is in the output once, or among the failed rows. The [tutorial](tutorial.md)
continues with new pictures.
"""
TITLES = ("A folder of pictures", "A CSV file")
SETUP = ["make demo", "source .venv/bin/activate"]
MOST_COMMANDS, MOST_SECONDS = 4, 120
IMAGE_MODEL = "google/vit-base-patch16-224"
TEXT_MODEL = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
PICTURES, DAMAGED, SIDE = 120, 77, 160
MOTIFS = {"astronaut": "astronaut", "cat": "chelsea", "coffee": "coffee", "rocket": "rocket"}
WORDS = {
    "POSITIVE": ("wonderful", "great", "lovely", "excellent", "charming"),
    "NEGATIVE": ("dull", "awful", "boring", "terrible", "clumsy"),
}
THINGS = ("story", "cast", "music", "ending", "photography")
PLACES = ("in the cinema", "at home,\nwith friends", 'in a "café"')
_STATE = re.compile(r"^[\w-]+: [\w ]+")
_VARYING = ("retries ", "size ", "speed ", "steps ")
"""Lines of the summary that depend on timing."""


@dataclass(frozen=True)
class Recording:
    """What the commands of each variant show, and the seconds that they take."""

    sections: dict[str, list[Shown]]
    seconds: dict[str, float]


def commands_of_readme() -> list[list[str]]:
    """Return the commands of the setup, and of each variant."""
    found = [block.splitlines() for block in blocks("README.md", "bash")[: 1 + len(TITLES)]]
    return [[line.partition(" #")[0].rstrip() for line in lines] for lines in found]


def motif(number: int) -> str:
    return list(MOTIFS)[number % len(MOTIFS)]


def picture(number: int) -> Image.Image:
    """Return a part of a photograph."""
    pixels = photograph(MOTIFS[motif(number)])
    height, width, _ = pixels.shape
    top, left = number * 37 % (height - SIDE), number * 53 % (width - SIDE)
    return Image.fromarray(pixels[top : top + SIDE, left : left + SIDE])


def reviews() -> list[tuple[str, str]]:
    """Return the text of each review, and its sentiment."""
    return [
        (f"The {thing} was {word} {place}", sentiment)
        for place in PLACES
        for thing in THINGS
        for pair in zip(*WORDS.values(), strict=True)
        for word, sentiment in zip(pair, WORDS, strict=True)
    ]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Yield a home directory with pictures, a CSV file, the directory of the commands, and the
    cache of the Hub. Its path is short, so that no path in the output is cut."""
    with tempfile.TemporaryDirectory() as directory:
        _fill(Path(directory))
        yield Path(directory)


def _fill(home: Path) -> None:
    for name in ("Pictures", "batchinference"):
        (home / name).mkdir()
    pictures = [picture(number) for number in range(PICTURES)]
    for number, image in enumerate(pictures):
        image.save(home / f"Pictures/IMG_{number:04d}.jpg")
    (home / f"Pictures/IMG_{DAMAGED:04d}.jpg").write_bytes(b"\xff\xd8 damaged")
    (home / "Pictures/notes.txt").write_text("not a picture")
    with (home / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "review"])
        rows.writerows((number, text) for number, (text, _) in enumerate(reviews()))
    _write_models(home, pictures)


def _write_models(home: Path, pictures: Sequence[Image.Image]) -> None:
    from support.models.trained import image_classifier, text_classifier  # imports transformers

    image_classifier(home / "vit", pictures, [motif(number) for number in range(PICTURES)])
    text_classifier(home / "bert", *zip(*reviews(), strict=True))
    for model, folder in ((IMAGE_MODEL, "vit"), (TEXT_MODEL, "bert")):
        add_to_hub_cache(home / "hub", model, "main", home / folder)


@pytest.fixture(scope="module")
def recording(home: Path) -> Recording:
    """Run the commands of both variants in one directory, one after the other."""
    sections: dict[str, list[Shown]] = {}
    seconds: dict[str, float] = {}
    _, *variants = commands_of_readme()
    for title, commands in zip(TITLES, variants, strict=True):
        began = time.monotonic()
        sections[title] = [in_shell(home, command) for command in commands]
        seconds[title] = time.monotonic() - began
    return Recording(sections, seconds)


def in_shell(home: Path, command: str) -> Shown:
    """Run a command as a shell does in which the environment of `make demo` is active."""
    env = {
        "HOME": str(home),
        "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_HUB_OFFLINE": "1",
    }
    shell = Command(["-c", command], home / "batchinference", env, Path("/bin/bash"))
    done = shell.run(timeout=scaled(2 * MOST_SECONDS))
    lines = (done.stdout + done.stderr).replace(str(home), "/home/me").splitlines()
    return Shown(command, thinned(lines, [_state(line) for line in lines]), done.returncode)


def _state(line: str) -> str:
    """Return the job and the state in a line of progress; other lines are returned as they are."""
    found = _STATE.match(line)
    return found[0] if found else line


def shape(shown: Shown) -> list[str]:
    """Return what must be the same on the page."""
    lines = (line for line in shown.lines if not line.startswith(_VARYING))
    return masked(_state(line) for line in lines)


def test_each_variant_has_few_commands() -> None:
    setup, *variants = commands_of_readme()
    assert setup == SETUP
    assert len(variants) == len(TITLES)
    assert all(0 < len(commands) <= MOST_COMMANDS - len(SETUP) for commands in variants)


@long
def test_commands_print_what_the_page_shows(
    recording: Recording, request: pytest.FixtureRequest
) -> None:
    failed = [one for found in recording.sections.values() for one in found if one.exit_code]
    assert not failed, failed[0].text
    if request.config.getoption("--write-first-run", default=False):
        (ROOT / PAGE).write_text(page_of(HEAD, recording.sections))
    compare_with_page(PAGE, recording.sections, shape, RECORDER)


@long
def test_pictures_get_their_classes(recording: Recording, home: Path) -> None:
    rows = rows_of(home / "batchinference/out")
    numbers = {int(Path(row["path"]).stem.removeprefix("IMG_")): row["label"] for row in rows}
    assert sorted(numbers) == [number for number in range(PICTURES) if number != DAMAGED]
    right = [found == motif(number) for number, found in numbers.items()]
    assert sum(right) > 0.9 * len(right)


@long
def test_reviews_get_their_sentiments(recording: Recording, home: Path) -> None:
    rows = sorted(rows_of(home / "batchinference/sentiment"), key=lambda row: int(row["id"]))
    assert [row["review"] for row in rows] == [text for text, _ in reviews()]
    right = [
        row["sentiment"] == sentiment for row, (_, sentiment) in zip(rows, reviews(), strict=True)
    ]
    assert sum(right) > 0.9 * len(right)


@long
@pytest.mark.parametrize("title", TITLES)
def test_commands_take_less_than_two_minutes(recording: Recording, title: str) -> None:
    """On a machine that is slow or busy, they may take longer by its factor."""
    assert recording.seconds[title] < MOST_SECONDS * machine_factor(measured_seconds())
