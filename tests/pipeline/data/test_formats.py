"""Every file format: the rows that are read, on a local disk and on S3, equal those written, and
randomly damaged files become failed rows."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from batchinference.pipeline.arrow import tensors_to_lists
from batchinference.pipeline.errors import JobFailure
from batchinference.pipeline.input.readers.kinds import READERS
from support.inputs.formats import CASES, Case
from support.inputs.read_files import Outcome, open_input, read_files
from support.jobs.on_ray import without_order
from support.servers.s3 import S3Server
from support.tiers import examples

Upload = Callable[[Path], str]
"""Makes a directory available on the disk or in the bucket, and returns its address."""


@pytest.fixture(params=["disk", "s3"])
def upload(request: pytest.FixtureRequest) -> Upload:
    if request.param == "disk":
        return str
    bucket, server = request.getfixturevalue("bucket"), request.getfixturevalue("s3")

    def put(directory: Path) -> str:
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        keys = {f"in/{path.relative_to(directory)}": path.read_bytes() for path in files}
        server.put(bucket, keys)
        return f"s3://{bucket}/in/"

    return put


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rows_equal_those_written(case: Case, upload: Upload, tmp_path: Path) -> None:
    written = tmp_path / "in"
    written.mkdir()
    expected = case.write(written)
    opened = open_input(case.format, upload(written), **case.options)
    outcome = opened.read()
    assert outcome.bad == {}
    assert without_order(tensors_to_lists(outcome.table).to_pylist()) == without_order(expected)
    each = opened.given.rows_each
    counted = sum(outcome.ends.values()) if each is None else each * len(opened.given)
    assert counted == len(expected)
    assert opened.file_rows.reader.columns() == list(expected[0])
    again = open_input(case.format, opened.snapshot.root.uri, **case.options)
    tasks = pickle.loads(pickle.dumps(again.given.read_tasks(1)))  # as other processes get them
    sent = Outcome([batch for task in tasks for batch in task()])
    assert (sent.order, sent.table) == (outcome.order, outcome.table)


def test_table_has_every_format() -> None:
    assert {case.format for case in CASES.values()} == READERS.keys()


def test_missing_object_fails_its_row(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    s3.put(bucket, {"deep/x.txt": b"there"})
    uris = [f"s3://{bucket}/deep/x.txt", f"s3://{bucket}/gone.txt"]
    (tmp_path / "here.csv").write_text("\n".join(["uri", *uris]) + "\n")
    assert len(read_files("manifest", tmp_path / "here.csv", decode="text").bad) == 2
    allow = [f"s3://{bucket}/"]
    outcome = read_files("manifest", tmp_path / "here.csv", decode="text", allow=allow)
    assert outcome.column("text").tolist() == ["there"]
    assert outcome.bad == {(0, 1): f"s3://{bucket}/gone.txt does not exist"}


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
        choice = chance.choice(files)
        path = choice.with_name(f"damaged{''.join(choice.suffixes)}")
        path.write_bytes(damaged(chance, choice.read_bytes()))
        try:
            opened = open_input(case.format, path, **case.options)
            counted = opened.given.count()
            assert counted is None or counted.rows >= 0
            assert opened.read().batches, number
        except JobFailure:  # the job is refused with a cause
            pass
