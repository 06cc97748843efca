"""Each job of docs/formats.md writes the rows that it should."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image
from skimage import data

from batchinference.cli.files import with_absolute_paths
from batchinference.spec import parse
from support.documentation import jobs, name_of
from support.documents import Document
from support.inputs import add_member, write_video
from support.job_runs import errors_of, run_job
from support.outputs import Row, rows_of
from support.table_sources import ROWS, lance_set, saved
from support.tfrecords import write_examples

pytestmark = pytest.mark.usefixtures("ray")
PAGE = "docs/formats.md"
PHOTOGRAPHS = ("astronaut", "chelsea", "coffee")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files that the page names."""
    for name in ("photos", "speech", "films", "vectors", "records", "shards"):
        (tmp_path / name).mkdir()
    for name in PHOTOGRAPHS:
        Image.fromarray(getattr(data, name)()).save(tmp_path / f"photos/{name}.jpg")
    soundfile.write(tmp_path / "speech/a.flac", np.zeros((44100, 2)), 44100)
    write_video(tmp_path / "films")
    np.save(tmp_path / "vectors/a.npy", np.arange(6.0).reshape(3, 2))
    write_examples(tmp_path / "records/a.tfrecord", [{"id": 1, "tags": [b"one"]}])
    with tarfile.open(tmp_path / "shards/0.tar", "w") as archive:
        for name in PHOTOGRAPHS:
            add_member(archive, f"{name}.jpg", (tmp_path / f"photos/{name}.jpg").read_bytes())
            add_member(archive, f"{name}.json", json.dumps({"name": name}).encode())
    lines = ["photo,title", "photos/astronaut.jpg,Astronaut", "photos/missing.jpg,Nobody"]
    (tmp_path / "listed.csv").write_text("\n".join(lines) + "\n")
    write_sources(tmp_path)
    return tmp_path


def write_sources(directory: Path) -> None:
    """What the page reads that is not files, and the files of its partitions."""
    for kind, name in (("cat", "a"), ("dog", "b")):
        file = directory / f"pets/kind={kind}/{name}.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(f'{{"name": "{kind} {number}"}}\n' for number in range(2)))
    with contextlib.closing(sqlite3.connect(directory / "tickets.db")) as base, base:
        base.execute("CREATE TABLE tickets (id INTEGER, body TEXT, closed INTEGER)")
        rows = [(2, "two", 0), (1, "one", 0), (3, "three", 1)]
        base.executemany("INSERT INTO tickets VALUES (?, ?, ?)", rows)
    saved(directory / "reviews")
    lance_set(directory / "scored.lance", [{"id": n, "score": n / 40} for n in range(40)])


def shape(value: object) -> tuple[int, ...]:
    return np.asarray(value).shape


def check_thumbnails(rows: list[Row]) -> None:
    assert [shape(row["image"]) for row in rows] == [(32, 32)] * 3


def check_speech(rows: list[Row]) -> None:
    assert [(shape(row["amplitude"]), row["sample_rate"]) for row in rows] == [((16000,), 16000)]


def check_frames(rows: list[Row]) -> None:
    found = sorted((Path(row["path"]).name, row["frame_timestamp"]) for row in rows)
    assert found == [("a.mkv", 0.0), ("a.mkv", 1.0), ("b.mkv", 0.0), ("b.mkv", 1.0)]
    assert {shape(row["frame"]) for row in rows} == {(224, 224, 3)}


def check_vectors(rows: list[Row]) -> None:
    assert rows == [{"data": [0, 1]}, {"data": [2, 3]}, {"data": [4, 5]}]


def check_examples(rows: list[Row]) -> None:
    assert rows == [{"id": 1, "tags": [b"one"]}]


def check_samples(rows: list[Row]) -> None:
    assert [(row["__key__"], row["json"]["name"]) for row in rows] == [
        (name, name) for name in PHOTOGRAPHS
    ]
    assert {shape(row["jpg"]) for row in rows} == {(64, 64, 3)}


def check_listed(rows: list[Row]) -> None:
    assert [(row["photo"], row["title"]) for row in rows] == [("photos/astronaut.jpg", "Astronaut")]
    assert shape(rows[0]["image"]) == (64, 64, 3)


def check_some_pets(rows: list[Row]) -> None:
    expected = [("cat 0", "cat"), ("cat 1", "cat"), ("dog 0", "dog")]
    assert sorted((row["name"], row["kind"]) for row in rows) == expected


def check_open_tickets(rows: list[Row]) -> None:
    assert rows == [{"id": 1, "body": "one"}, {"id": 2, "body": "two"}]


def check_reviews(rows: list[Row]) -> None:
    assert rows == ROWS[:7]


def check_good_ones(rows: list[Row]) -> None:
    assert sorted(row["id"] for row in rows) == list(range(21, 40))


CHECKS = {
    "some-pets": check_some_pets,
    "thumbnails": check_thumbnails,
    "speech": check_speech,
    "frames": check_frames,
    "vectors": check_vectors,
    "examples": check_examples,
    "samples": check_samples,
    "listed": check_listed,
    "open-tickets": check_open_tickets,
    "reviews": check_reviews,
    "good-ones": check_good_ones,
}


def test_the_page_has_the_jobs_that_are_expected() -> None:
    assert [name_of(job) for job in jobs(PAGE)] == list(CHECKS)


@pytest.mark.parametrize("job", jobs(PAGE), ids=name_of)
def test_a_job_of_the_page_runs(job: Document, directory: Path) -> None:
    run = run_job(with_absolute_paths(parse(job), directory))
    assert run.report.message is None
    name = name_of(job)
    CHECKS[name](rows_of(directory / "out" / name))
    assert len(errors_of(directory / "out" / name)) == (name == "listed")
