"""Every format that is made of files, from a disk and from S3: the rows that were written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchinference.pipeline.readers import READERS
from batchinference.pipeline.writers.base import plain
from support.inputs import CASES, Case
from support.job_runs import without_order
from support.reading import open_input, read_files
from support.s3 import S3Server, s3_server

Place = Callable[[Path], str]
"""Brings a directory to where it is read, and tells its address."""


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "disk":
        return str
    server: S3Server = request.getfixturevalue("s3")
    bucket = tmp_path.name.replace("_", "-").lower().strip("-")
    server.client().create_bucket(Bucket=bucket)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    def put(directory: Path) -> str:
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        keys = {f"in/{path.relative_to(directory)}": path.read_bytes() for path in files}
        server.put(bucket, keys)
        return f"s3://{bucket}/in/"

    return put


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_rows_are_those_that_were_written(case: Case, place: Place, tmp_path: Path) -> None:
    written = tmp_path / "in"
    written.mkdir()
    expected = case.write(written)
    opened = open_input(case.format, place(written), **case.options)
    outcome = opened.read()
    assert outcome.bad == {}
    assert without_order(plain(outcome.table).to_pylist()) == without_order(expected)
    each = opened.given.rows_each
    counted = sum(outcome.ends.values()) if each is None else each * len(opened.given)
    assert counted == len(expected)
    assert opened.file_rows.reader.columns() == list(expected[0])
    again = open_input(case.format, opened.frozen.root.uri, **case.options).read()
    assert (again.places, again.table) == (outcome.places, outcome.table)


def test_every_format_is_in_the_table() -> None:
    assert {case.format for case in CASES.values()} == READERS.keys()


def test_an_object_that_is_gone_is_the_error_of_its_row(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = tmp_path.name.replace("_", "-").lower().strip("-")
    s3.client().create_bucket(Bucket=bucket)
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.put(bucket, {"deep/x.txt": b"there"})
    uris = [f"s3://{bucket}/deep/x.txt", f"s3://{bucket}/gone.txt"]
    (tmp_path / "here.csv").write_text("\n".join(["uri", *uris]) + "\n")
    outcome = read_files("manifest", tmp_path / "here.csv", decode="text")
    assert outcome.column("text").tolist() == ["there"]
    assert outcome.bad == {(0, 1): f"Gone: s3://{bucket}/gone.txt does not exist"}
