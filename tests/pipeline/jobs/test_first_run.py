"""A first run: a shell runs the commands of the README, over pictures and a CSV file of the user.

A small model stands in for that of the Hugging Face Hub, in its cache. The commands that follow the
installation have no network."""

from __future__ import annotations

import csv
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from PIL import Image

from landing.calibration import machine_factor, measured_seconds
from support.documents.pages import ROOT, blocks
from support.inputs.photographs import photograph
from support.jobs.command import PROGRAM, Command
from support.models.hub_cache import add_to_hub_cache
from support.outputs.rows import rows_of
from support.timeouts import scaled

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("first-run")]
"""The commands start Ray twice."""
long = pytest.mark.long("first-run")
CLONE = ("git clone ", "make -C batchinference demo")
MOST_COMMANDS, MOST_SECONDS = 4, 120
NO_NETWORK = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
IMAGE_MODEL = "google/vit-base-patch16-224"
PICTURES, DAMAGED, SIDE = 25, 7, 160
MOTIFS = {"astronaut": "astronaut", "cat": "chelsea", "coffee": "coffee", "rocket": "rocket"}
REVIEWS = {
    "The pasta was cold and the waiter was rude": "complaint",
    "A wonderful evening,\nthank you so much!": "praise",
    'Bad service: the "soup" was cold and I got no refund': "complaint",
    "Great cook, excellent pizza, well done": "praise",
}


def commands_of_readme() -> list[list[str]]:
    """Return the commands of each block for a machine: from the clone to own labels, the check of
    the machine, and pictures."""
    lines = [block.splitlines() for block in blocks("README.md", "bash")[:3]]
    return [[line.partition(" #")[0].rstrip() for line in lines] for lines in lines]


def motif(number: int) -> str:
    return list(MOTIFS)[number % len(MOTIFS)]


def picture(number: int) -> Image.Image:
    """Return a part of a photograph."""
    pixels = photograph(MOTIFS[motif(number)])
    height, width, _ = pixels.shape
    top, left = number * 37 % (height - SIDE), number * 53 % (width - SIDE)
    return Image.fromarray(pixels[top : top + SIDE, left : left + SIDE])


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Yield a home directory with pictures, a CSV file, the program of `make demo`, and the cache
    of the Hub. Only this environment is not installed by the commands."""
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "batchinference/.venv").mkdir(parents=True)
        (home / "batchinference/.venv/bin").symlink_to(PROGRAM.parent)
        write_reviews(home)
        write_pictures(home)
        yield home


def write_reviews(home: Path) -> None:
    with (home / "reviews.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "review"])
        rows.writerows(enumerate(REVIEWS))


def write_pictures(home: Path) -> None:
    from support.models.trained import image_classifier  # imports transformers

    (home / "Pictures").mkdir()
    pictures = [picture(number) for number in range(PICTURES)]
    for number, image in enumerate(pictures):
        image.save(home / f"Pictures/IMG_{number:04d}.jpg")
    (home / f"Pictures/IMG_{DAMAGED:04d}.jpg").write_bytes(b"\xff\xd8 damaged")
    (home / "Pictures/notes.txt").write_text("not a picture")
    image_classifier(home / "vit", pictures, [motif(number) for number in range(PICTURES)])
    add_to_hub_cache(home / "hub", IMAGE_MODEL, "main", home / "vit")


def in_shell(
    home: Path, commands: Sequence[str], **env: str
) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run commands as a shell does, and return what they print and the seconds that they take."""
    env = {"HOME": str(home), "HF_HUB_CACHE": str(home / "hub"), **NO_NETWORK, **env}
    shell = Command(["-ec", "\n".join(commands)], home, env, Path("/bin/bash"))
    began = time.monotonic()
    done = shell.run(timeout=scaled(5 * MOST_SECONDS))
    assert done.returncode == 0, done.stdout + done.stderr
    return done, time.monotonic() - began


def check_labels(home: Path) -> None:
    """Check the labels that the commands have written to CSV files."""
    (file,) = (home / "out").glob("*.csv")
    rows = list(csv.DictReader(file.read_text().splitlines(keepends=True)))
    assert {row["review"]: row["label"] for row in rows} == REVIEWS
    assert all(0 < float(row["score"]) <= 1 for row in rows)


def test_few_commands_lead_from_a_clone_to_labels() -> None:
    commands, _, _ = commands_of_readme()
    assert 2 < len(commands) <= MOST_COMMANDS
    assert all(map(str.startswith, commands, CLONE))


@long
def test_texts_get_own_labels_without_a_network(home: Path) -> None:
    """On a machine that is slow or busy, the commands may take longer by its factor."""
    commands, check, _ = commands_of_readme()
    done, seconds = in_shell(home, commands[len(CLONE) :])
    assert "label: complaint" in done.stderr
    check_labels(home)
    assert seconds < MOST_SECONDS * machine_factor(measured_seconds())
    in_shell(home, check[1:], PATH=f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}")


@long
def test_pictures_of_which_one_is_damaged_get_their_classes(home: Path) -> None:
    *_, commands = commands_of_readme()
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
    in_shell(home, commands, PATH=path, HF_HUB_OFFLINE="1")
    rows = rows_of(home / "pictures")
    labels = {int(Path(row["path"]).stem.removeprefix("IMG_")): row["label"] for row in rows}
    assert sorted(labels) == [number for number in range(PICTURES) if number != DAMAGED]
    right = [label == motif(number) for number, label in labels.items()]
    assert sum(right) > 0.9 * len(right)


@long
def test_commands_lead_from_a_clone_to_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the README as they are, with downloads from the package registry."""
    commands, _, _ = commands_of_readme()
    write_reviews(tmp_path)
    proxies = {name: os.environ.get(name, "") for name in NO_NETWORK}
    environment = {"REPOSITORY": ROOT.as_uri(), "VENV": ".venv", **proxies}
    began = time.time()
    online = in_shell(tmp_path, commands[: len(CLONE)], **environment)[1]
    download = (tmp_path / "batchinference/.venv/.demo").stat().st_mtime - began
    offline = in_shell(tmp_path, commands[len(CLONE) :])[1]
    check_labels(tmp_path)
    with capsys.disabled():
        print(f"\nclone and installation {download:.0f} s, demo {online - download:.0f} s, "
              f"labels {offline:.0f} s")  # fmt: skip
