"""Each job of the pages runs without Ray and writes the rows that the page describes."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from batchinference.api.job_files import with_absolute_paths
from batchinference.spec import parse
from support.documents.minimal import Document, document
from support.documents.pages import jobs, name_of, parts_of_jobs
from support.inputs.table_sources import ROWS
from support.jobs.on_ray import errors_of
from support.jobs.without_ray import run_without_ray
from support.outputs.rows import Row, rows_of

PHOTOGRAPHS = ["astronaut", "chelsea", "coffee"]


def shape(value: object) -> tuple[int, ...]:
    return np.asarray(value).shape


def count(rows: int) -> Callable[[list[Row]], None]:
    def check(result: list[Row]) -> None:
        assert len(result) == rows

    return check


def equal(*rows: Row) -> Callable[[list[Row]], None]:
    def check(result: list[Row]) -> None:
        assert result == list(rows)

    return check


def check_tickets(rows: list[Row]) -> None:
    first, other, equal = (row["embedding"] for row in rows)
    assert first == equal != other


def check_thumbnails(rows: list[Row]) -> None:
    assert [shape(row["image"]) for row in rows] == [(32, 32)] * 3


def check_x_rays(rows: list[Row]) -> None:
    (row,) = rows
    assert (np.min(row["image"]), np.max(row["image"]), shape(row["image"])) == (0, 255, (8, 8))


def check_scans(rows: list[Row]) -> None:
    result = [(Path(row["path"]).name, row["page_index"], np.mean(row["image"])) for row in rows]
    assert result == [("a.tif", 0, 255), ("a.tif", 1, 128), ("a.tif", 2, 0)]


def check_speech(rows: list[Row]) -> None:
    assert [(shape(row["amplitude"]), row["sample_rate"]) for row in rows] == [((16000,), 16000)]


def check_frames(rows: list[Row]) -> None:
    pairs = sorted((Path(row["path"]).name, row["frame_timestamp"]) for row in rows)
    assert pairs == [("a.mkv", 0.0), ("a.mkv", 1.0), ("b.mkv", 0.0), ("b.mkv", 1.0)]
    assert {shape(row["frame"]) for row in rows} == {(224, 224, 3)}


def check_samples(rows: list[Row]) -> None:
    assert [(row["__key__"], row["json"]["name"]) for row in rows] == [
        (name, name) for name in PHOTOGRAPHS
    ]
    assert {shape(row["jpg"]) for row in rows} == {(64, 64, 3)}


def check_labels(rows: list[Row]) -> None:
    expected = [("1", "one", "007"), ("2", "two", "8")]
    assert [(row["__key__"], row["txt"], row["cls"]) for row in rows] == expected


def check_listed(rows: list[Row]) -> None:
    assert [(row["photo"], row["title"]) for row in rows] == [("photos/astronaut.jpg", "Astronaut")]
    assert shape(rows[0]["image"]) == (64, 64, 3)


def check_some_pets(rows: list[Row]) -> None:
    expected = [("cat 0", "cat"), ("cat 1", "cat"), ("dog 0", "dog")]
    assert sorted((row["name"], row["kind"]) for row in rows) == expected


def check_camera(rows: list[Row]) -> None:
    names = sorted(Path(row["path"]).name for row in rows)
    assert names == ["IMG_1.JPG", "photo", "scan.jfif"]


def check_conversations(rows: list[Row]) -> None:
    assert [row["ask"][:5] for row in rows] == ["a tex", '[{"ro']
    assert all(isinstance(row["answer"], str) for row in rows)


def check_visits(rows: list[Row]) -> None:
    assert {row["visitor"] for row in rows} == {"7", "A12"}
    assert {row["at"] for row in rows} == {datetime.fromtimestamp(1_700_000_000, UTC)}


def check_joined(rows: list[Row]) -> None:
    ((source, row),) = [(row.pop("source"), row) for row in rows]
    assert (Path(source).name, row) == ("joined.csv", {"id": 1, "path": "a", "id_1": 2})


def check_measurements(rows: list[Row]) -> None:
    assert [(row["time"], row["celsius"]) for row in rows] == [(1, 20.5), (2, None), (3, 21)]


def check_remarks(rows: list[Row]) -> None:
    assert [row["remark"] for row in rows] == ["fine", "good"]


def check_customers(rows: list[Row]) -> None:
    expected = ("7", "00501", date(2026, 1, 31), Decimal("1.10"))
    assert [tuple(row.values()) for row in rows] == [expected]


def check_papers(rows: list[Row]) -> None:
    rows.sort(key=lambda row: (row["path"], row["page"] or 0))
    first, empty, last, letter, slide, page, mail = rows
    assert (first["page"], first["text"]) == (1, "the first page of a paper")
    assert (empty["text"], empty["embedding"], last["page"]) == ("", None, 3)
    assert [row["page"] for row in (letter, slide, page, mail)] == [None, 1, None, None]
    assert (page["title"], mail["attachments"]) == ("Page", ["a.pdf"])
    assert shape(mail["embedding"]) == shape(first["embedding"])


def check_scanned(rows: list[Row]) -> None:
    ((page, shown),) = [(row["page"], shape(row["image"])) for row in rows]
    assert (page, shown) == (2, (1170, 827, 3))


def check_two_prompts(rows: list[Row]) -> None:
    expected = [("Complete this page", 0.5, True), ("for me page", None, False)]
    assert [(row["prompt"], row["temperature"], row["warm"]) for row in rows] == expected


def check_brightness(rows: list[Row]) -> None:
    assert sorted(Path(row["path"]).stem for row in rows) == PHOTOGRAPHS
    assert all(0 < row["brightness"] < 1 for row in rows)


def check_stored(rows: list[Row]) -> None:
    assert [(row["title"], row["details"]) for row in rows] == [
        (f"{name.upper()}!", {"length": len(name)}) for name in PHOTOGRAPHS
    ]
    assert {shape(row["pixels"]) for row in rows} == {(64, 64, 3)}
    assert all(row["kilobytes"] > 1 for row in rows)


def check_missing_texts(rows: list[Row]) -> None:
    by_id = {row["id"]: row["embedding"] is None for row in rows}
    assert by_id == {1: False, 2: True, 3: False}


def check_long_texts(rows: list[Row]) -> None:
    short, long = sorted(rows, key=lambda row: len(row["text"]))
    assert np.linalg.norm([short["embedding"], long["embedding"]], axis=1) == pytest.approx([1, 1])
    assert max(name["start"] for name in long["names"]) > 200
    assert shape(long["end"]) == (32,)


def check_passages(rows: list[Row]) -> None:
    first = [row for row in rows if row["chunk_index"] == 0]
    assert len(first) == 4
    assert len(rows) > 8
    assert all(len(row["text"]) == row["chunk_end"] - row["chunk_start"] <= 24 for row in rows)


def check_second_opinion(rows: list[Row]) -> None:
    assert len(rows) == 3
    assert {row["expensive"] is None for row in rows} == {True, False}
    for row in rows:
        assert row["label"] == (row["expensive"] or row["cheap"])["label"]
        assert (row["expensive"] is not None) == (row["cheap"]["score"] < 0.8)


def check_cascade(rows: list[Row]) -> None:
    assert len(rows) == 400
    assert all(row["label"] == row["cheap"]["label"] for row in rows)
    assert sum(row["expensive"] is not None for row in rows) == 100


def check_good_ones(rows: list[Row]) -> None:
    assert sorted(row["id"] for row in rows) == list(range(21, 40))


def check_new_events(rows: list[Row]) -> None:
    assert [(row["id"], row["text"], row["_change_type"]) for row in rows] == [(2, "b", "insert")]


def check_changes_of_orders(rows: list[Row]) -> None:
    (row,) = rows
    assert (row["id"], row["status"], row["_change_type"]) == (1, "paid", "insert")


def check_sentiments(rows: list[Row]) -> None:
    assert len(rows) == 3
    assert all(isinstance(row["sentiment"], str) for row in rows)
    assert all(0 < row["sentiment_score"] <= 1 for row in rows)


def check_praise(rows: list[Row]) -> None:
    (row,) = rows  # of three texts
    assert set(row) == {"text", "score", "source"}
    assert row["source"] == "web"
    assert 0.5 < row["score"] <= 1


TYPED_ORDERS = [
    {"id": "7", "when": date(2026, 1, 31), "price": Decimal("1.10"), "note": '["a", {"b": 1}]'},
    {"id": "A12", "when": None, "price": Decimal("2.50"), "note": '"none"'},
]
EXPECTED = {
    "docs/jobs.md": {"torch-model": count(3), "one-topic": count(2), "gated": count(3)},
    "docs/errors.md": {"bad-rows": count(2)},
    "docs/exactly-once.md": {"mirror": count(3)},
}
"""A check of the rows that each job of a page writes, in the order of the page."""
PARTS = {
    "docs/models.md": {
        "missing-texts": check_missing_texts,
        "long-texts": check_long_texts,
        "long-prompts": count(2),
    },
    "docs/transformers.md": {
        "sentiments": check_sentiments,
        "generation": count(4),
        "photos": count(3),
    },
    "docs/torch.md": {"quality": count(3)},
    "docs/steps.md": {
        "steps": count(2),
        "praise": check_praise,
        "brightness": check_brightness,
        "rows": count(80),
        "legacy": count(3),
        "passages": check_passages,
        "second-opinion": check_second_opinion,
        "cascade": check_cascade,
        "stored-photos": check_stored,
        "tickets": check_tickets,
    },
    "docs/formats.md": {
        "camera": check_camera,
        "exported": equal({"id": 1}, {"id": 2}),
        "inbox": count(0),
        "some-pets": check_some_pets,
        "typed-orders": equal(*TYPED_ORDERS),
        "customers": check_customers,
        "recent-sales": equal({"item": "ink", "year": 2025, "month": 6}),
        "joined": check_joined,
        "prices": equal({"Artikel": "Stift", "Preis": 1.5}),
        "measurements": check_measurements,
        "quotations": equal({"id": 1, "text": 'say "hi", please'}, {"id": 2, "text": None}),
        "dump": equal({"id": 1, "title": '"The" film\nin two lines'}, {"id": 2, "title": None}),
        "remarks": check_remarks,
        "receipts": equal({"id": 1, "items": ["pen"]}, {"id": 2, "items": []}),
        "conversations": check_conversations,
        "visits": check_visits,
        "thumbnails": check_thumbnails,
        "x-rays": check_x_rays,
        "scans": check_scans,
        "speech": check_speech,
        "frames": check_frames,
        "samples": check_samples,
        "labels": check_labels,
        "papers": check_papers,
        "scanned": check_scanned,
        "listed": check_listed,
        "open-tickets": equal({"id": 1, "body": "one"}, {"id": 2, "body": "two"}),
        "reviews": equal(*ROWS[:7]),
        "two-prompts": check_two_prompts,
        "good-ones": check_good_ones,
        "new-events": check_new_events,
        "changes-of-orders": check_changes_of_orders,
    },
}
"""Names for the parts of jobs on a page, in its order, and a check of the rows of each."""
FAILED_ROWS = {"bad-rows": 1, "listed": 1, "remarks": 1, "papers": 1, "scanned": 1}
CHECKS = {name: check for checks in (EXPECTED | PARTS).values() for name, check in checks.items()}


def completed(page: str) -> list[Document]:
    """Return a job of each part on a page, with a name and, if the part has none, an output."""
    return [
        document(name, **{"write": {"format": "parquet", "path": f"./out/{name}"}, **part})
        for name, part in zip(PARTS[page], parts_of_jobs(page), strict=True)
    ]


WHOLE = [pytest.param(job, id=name_of(job)) for page in EXPECTED for job in jobs(page)]
COMPLETED = [pytest.param(job, id=name_of(job)) for page in PARTS for job in completed(page)]


def test_every_job_of_a_page_has_expected_rows() -> None:
    by_page = {page: [name_of(job) for job in jobs(page)] for page in EXPECTED}
    assert by_page == {page: list(checks) for page, checks in EXPECTED.items()}


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("job", WHOLE + COMPLETED)
def test_job_of_a_page_writes_the_expected_rows(job: Document, directory: Path) -> None:
    absolute = with_absolute_paths(parse(job), directory)
    report = run_without_ray(absolute, rows_per_task=200)
    assert report.message is None
    output = Path(absolute.spec.write.path)
    CHECKS[name_of(job)](written(output))
    assert len(errors_of(output)) == FAILED_ROWS.get(name_of(job), 0)


def written(output: Path) -> list[Row]:
    packed = [gzip.decompress(file.read_bytes()) for file in output.glob("*.jsonl.gz")]
    lines = b"".join(packed).splitlines()
    separated = (csv.DictReader(file.open()) for file in output.glob("*.csv"))
    tables = [row for reader in separated for row in reader]
    return rows_of(output) + [json.loads(line) for line in lines] + tables
