"""Local files with any name are read, also with names that are not valid UTF-8."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from batchinference.api.job_files import with_absolute_paths
from batchinference.pipeline.commit.snapshot import Snapshot
from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input.changed_files import ResumedInput
from batchinference.pipeline.input.input_snapshot import digest, read_snapshot
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.row_batch import merged
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import ReadImages
from batchinference.spec.report import JobState
from batchinference.spec.storage import FROM_ENVIRONMENT
from support.documents.parsed import job
from support.inputs.formats import CASES
from support.inputs.read_files import open_input, read_files
from support.jobs.on_ray import errors_of, job_document, run_in_process
from support.outputs.batches import end, good
from support.outputs.builders import begin_job, commit_rows
from support.outputs.rows import rows_of
from support.outputs.verify_command import verified

NAMES = [b"caf\xe9.txt", rb"caf\xe9.txt", rb"caf\x5cxe9.txt", "café.txt".encode(), b"\xff\xfe.txt"]
TEXTS = [r"caf\xe9.txt", r"caf\x5cxe9.txt", r"caf\x5cx5cxe9.txt", "café.txt", r"\xff\xfe.txt"]
"""The names as they are shown."""


def make(directory: Path, *names: bytes) -> Path:
    """Write files whose only line is their number."""
    for number, name in enumerate(names):
        path = Path(os.fsdecode(os.path.join(os.fsencode(directory), name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}\n")
    return directory


def paths(directory: Path | str, **options: object) -> dict[str, str]:
    """Return the text of each file by its path below the directory."""
    rows = read_files("text", directory, includePaths=True, **options).good
    start = str(directory).split("*")[0].rstrip("/") + "/"
    return {row["path"].removeprefix(start): row["text"] for row in rows}


@pytest.mark.parametrize(("name", "text"), zip(NAMES, TEXTS, strict=True), ids=TEXTS)
def test_path_may_be_written_as_it_is_shown(tmp_path: Path, name: bytes, text: str) -> None:
    make(tmp_path, *NAMES)
    expected = [{"text": str(NAMES.index(name)), "path": f"{tmp_path}/{text}"}]
    assert read_files("text", tmp_path / text, includePaths=True).good == expected
    directory = make(tmp_path / "deep", name + b"/a.txt") / text
    assert paths(directory) == {"a.txt": "0"}
    assert paths(f"{directory}/*.txt") == {"a.txt": "0"}


@pytest.mark.parametrize("case", CASES)
def test_every_format_is_read_from_a_directory_of_any_name(tmp_path: Path, case: str) -> None:
    (tmp_path / "in").mkdir()
    rows = CASES[case].write(tmp_path / "in")
    (tmp_path / "in").rename(tmp_path / os.fsdecode(b"d\xe9"))
    read = read_files(CASES[case].format, tmp_path / r"d\xe9", **CASES[case].options)
    assert (len(read.good), read.bad) == (len(rows), {})


def test_content_of_files_with_any_name_is_recognized(tmp_path: Path) -> None:
    content = io.BytesIO()
    Image.new("RGB", (4, 4)).save(content, "PNG")
    (tmp_path / os.fsdecode(b"photo\xe9")).write_bytes(content.getvalue())
    assert len(read_files("images", tmp_path).good) == 1
    make(tmp_path, b"note\xe9.txt")
    ignored = snapshot_input([str(tmp_path)], None, kind=ReadImages).ignored
    assert ignored.groups[0].example == rf"{tmp_path}/note\xe9.txt"


def test_partitions_may_have_any_name(tmp_path: Path) -> None:
    for name in (b"kind=caf\xe9", b"kind=a%20b"):
        make(tmp_path / "in", name + b"/a.txt")
    rows = read_files("text", tmp_path / "in", partitioning="hive").good
    assert [row["kind"] for row in rows] == ["a b", r"caf\xe9"]


def test_stored_list_has_the_names(tmp_path: Path) -> None:
    frozen = snapshot_input([str(make(tmp_path / "in", *NAMES))], [])
    location = Location(str(tmp_path / "input.parquet"))
    location.write(frozen.serialized())
    stored = read_snapshot(location, FROM_ENVIRONMENT, digest(location.read()))
    assert stored.uris == frozen.uris
    assert [stored.address(file).read() for file in stored.files()] == [
        frozen.address(file).read() for file in frozen.files()
    ]
    none = Snapshot("key", "", [], {})
    resumed = ResumedInput(stored, lambda rows_each: none.missing_rows(len(stored), rows_each))
    changes = resumed.check(snapshot_input([str(tmp_path / "in")], []), None)
    assert (changes.changed, changes.gone) == ({}, set())


def test_job_resumes_appends_and_is_verified(tmp_path: Path) -> None:
    source = make(tmp_path / "in", *NAMES[:3])
    document = job_document("any", source, tmp_path / "out", write={"mode": "append"})
    first = merged([good(0, 0, pa.table({"text": ["0"]})), end(0, 1)])
    commit_rows(begin_job(document).job_pass, first)
    assert run_in_process(document).counts[0] == 3
    make(source, NAMES[4])
    assert run_in_process(document).counts[0] == 1
    assert len(rows_of(tmp_path / "out")) == 4
    assert verified(tmp_path / "out").result == "proven"


def test_error_records_have_the_escaped_name(tmp_path: Path) -> None:
    make(tmp_path / "in", b"caf\xe9.jsonl")
    read = {"format": "json"}
    document = job_document("bad", tmp_path / "in", tmp_path / "out", read=read)
    report = run_in_process({**document, "spec": {**document["spec"], "errors": {"maxRows": 1}}})
    assert report.report.state == JobState.SUCCEEDED
    (record,) = errors_of(tmp_path / "out")
    assert record["path"] == rf"{tmp_path}/in/caf\xe9.jsonl"


def test_missing_file_is_named_with_a_similar_one(tmp_path: Path) -> None:
    make(tmp_path, b"caf\xe9.txt")
    with pytest.raises(BadInput, match=r"does not exist; did you mean 'caf\\xe9\.txt'"):
        snapshot_input([rf"{tmp_path}/caf\xe8.txt"], [])


def test_relative_paths_start_in_a_directory_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, b"d\xe9/caf\xe9.txt")
    monkeypatch.chdir(tmp_path / os.fsdecode(b"d\xe9"))
    assert Location(r"caf\xe9.txt").path == rf"{tmp_path}/d\xe9/caf\xe9.txt"
    assert Location("./").files()[0].path == rf"{tmp_path}/d\xe9/caf\xe9.txt"
    assert paths(".") != {}


def test_directory_of_the_job_may_have_any_name(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xe9"))
    make(directory / "in", b"a.txt")
    read = {"format": "text", "paths": ["in"]}
    given = job(read=read, write={"format": "json", "path": "out"})
    absolute = with_absolute_paths(given, directory)
    assert absolute.spec.read.paths == [rf"{tmp_path}/d\xe9/in"]  # type: ignore[union-attr]
    assert run_in_process(absolute).counts[0] == 1
    assert len(list((directory / "out").glob("part-*"))) == 1
    assert verified(tmp_path / r"d\xe9" / "out").result == "proven"


class TestLinks:
    """The rules for links hold for all names."""

    def test_link_to_a_file_outside_of_the_paths_is_refused(self, tmp_path: Path) -> None:
        make(tmp_path, b"secret\xe9")
        (tmp_path / "in").mkdir()
        link = tmp_path / "in" / os.fsdecode(b"a\xe9.txt")
        link.symlink_to(tmp_path / os.fsdecode(b"secret\xe9"))
        read = read_files("text", tmp_path / "in")
        assert (len(read.good), len(read.bad)) == (0, 1)
        assert "symbolic link" in read.bad[0, 0]
        both = [tmp_path / "in", tmp_path / r"secret\xe9"]
        assert len(read_files("text", *both).bad) == 0

    def test_name_does_not_lead_out_of_the_paths(self, tmp_path: Path) -> None:
        make(tmp_path, b"secret.txt", rb"in/a..\xe9.txt", rb"in/\x2e\x2e\x2fsecret.txt")
        rows = read_files("text", tmp_path / "in")
        assert sorted(row["text"] for row in rows.good) == ["1", "2"]

    def test_output_below_a_link_is_refused(self, tmp_path: Path) -> None:
        root = Location(rf"{tmp_path}/o\xe9")
        (root / "a").write(b"x")
        directory = tmp_path / os.fsdecode(b"o\xe9")
        (directory / "link").symlink_to(tmp_path)
        inside = (root / "link" / "b").without_links_below(root)
        for job_pass in (inside.read, inside.info, lambda: inside.write(b"y")):
            with pytest.raises(Exception, match="symbolic link"):
                job_pass()
        assert [info.path for info in root.files()] == [rf"{tmp_path}/o\xe9/a"]
        (root / "a").move(root / "b")
        (root / "b").delete()
        root.delete_directory()
        assert not directory.exists()


def test_manifest_may_have_addresses_of_any_name(tmp_path: Path) -> None:
    make(tmp_path, b"photos/caf\xe9.txt")
    table = pa.table({"uri": [r"photos/caf\xe9.txt", rf"{tmp_path}/photos/caf\xe9.txt"]})
    pq.write_table(table, tmp_path / "m.parquet")
    read = read_files("manifest", tmp_path / "m.parquet", decode="text")
    assert [row["text"] for row in read.good] == ["0\n", "0\n"]


def test_numbers_of_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xe9.parquet")
    with path.open("wb") as file:
        pq.write_table(pa.table({"n": np.arange(7)}), file)
    opened = open_input("parquet", tmp_path, limit=5)
    assert len(opened.read().good) == 5
