"""Defects are found and named. Each test adds one defect to a correct output."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.commit.manifest import DataFile
from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.output_targets import OutputTarget
from batchinference.pipeline.storage.state_json import CHECKSUM_FIELD, dump_checksummed
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import data_files, job_document, write_lines
from support.outputs.builders import every_tenth, make_output
from support.outputs.verify_command import invoke, verified

FORMATS = ["parquet", "json", "csv", "webdataset"]


def job(directory: Path, **write: Any) -> Document:
    lines = {f"{n}.txt": [f"text {n} {m}" for m in range(50)] for n in range(4)}
    source = write_lines(directory / "in", lines)
    return job_document("job", source, directory / "out", write=write, errors={"maxRows": 1000})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return the layout of a JSON output: three commits with one data and one error file each."""
    return make_output(job(tmp_path), every_tenth)


@pytest.fixture
def out(layout: Layout) -> Path:
    return Path(layout.output.path)


def change(file: Path, how: Callable[[bytes], bytes]) -> None:
    file.write_bytes(how(file.read_bytes()))


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def change_end(layout: Layout, how: Callable[[list[Any]], list[Any]]) -> None:
    """Change the entries of output.json."""
    end = json.loads(layout.final_snapshot.read())
    write_end(layout, {**end, "entries": how(end["entries"])})


def write_end(layout: Layout, end: Any) -> None:
    """Write output.json with a correct checksum, as somebody could who knows the format."""
    layout.final_snapshot.write(
        dump_checksummed({name: value for name, value in end.items() if name != CHECKSUM_FIELD})
    )


def entries_of(layout: Layout) -> list[Any]:
    return list(json.loads(layout.final_snapshot.read())["entries"])


def assert_found(kind: str, file: Path, output: Path | str, *options: str) -> None:
    """Check that this file is the only finding of a verification."""
    done = verified(output, *options)
    assert (done.exit_code, done.result, done.counts) == (1, "notProven", {kind: 1})
    assert done.where(kind) == [{"file": str(file)}]


@pytest.mark.parametrize("options", [[], ["--quick"]])
@pytest.mark.parametrize(("text", "part"), [("output", 0), ("output", 2), ("errors", 0)])
def test_missing_and_truncated_files_are_found(
    layout: Layout, text: str, part: int, options: list[str]
) -> None:
    file = data_files(Path(getattr(layout, text).path))[part]
    change(file, lambda content: content[:-1])
    assert_found("damaged", file, layout.output.path, *options)
    file.unlink()
    assert_found("gone", file, layout.output.path, *options)


@pytest.mark.parametrize("format_", FORMATS)
def test_changed_bit_is_found(tmp_path: Path, format_: str) -> None:
    layout = make_output(job(tmp_path, format=format_), every_tenth)
    file = data_files(Path(layout.output.path))[1]
    change(file, flip)
    assert_found("damaged", file, layout.output.path)


@pytest.mark.parametrize("format_", FORMATS)
def test_commit_with_too_many_rows_is_found(tmp_path: Path, format_: str) -> None:
    layout = make_output(job(tmp_path, format=format_))

    def more(entries: list[Any]) -> list[Any]:
        entries[0]["counts"]["written"] += 1
        return entries

    change_end(layout, more)
    done = verified(layout.output.path)
    assert (done.exit_code, done.counts) == (1, {"miscounted": 1, "report": 1})
    (spot,) = done.where("miscounted")
    assert Path(spot["file"]).name == entries_of(layout)[0]["data"][0]["name"]


def test_commit_with_too_few_rows_is_found(layout: Layout, messages: Messages) -> None:
    def fewer(entries: list[Any]) -> list[Any]:
        entries[0]["counts"] |= {"filtered": 0}
        return entries

    change_end(layout, fewer)
    (miscounted, _) = verified(layout.output.path).job["findings"]
    messages.check([spot["detail"] for spot in miscounted["where"]])


@pytest.mark.parametrize("name", [None, "sub"])
@pytest.mark.parametrize("text", ["output", "errors"])
def test_uncommitted_file_is_found(layout: Layout, text: str, name: str | None) -> None:
    """Also a copy of a committed file in a subdirectory."""
    directory = Path(getattr(layout, text).path)
    file = data_files(directory)[0]
    new = layout.file_prefix(1, 0, "deadbeef") + file.suffix
    orphan = copied(file, directory / (f"{name}/{file.name}" if name else new))
    assert_found("orphans", orphan, layout.output.path)


def copied(file: Path, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, to)
    return to


@pytest.mark.parametrize(
    "name",
    ["copy.jsonl", "copy.JSONL", "copy", "notes.txt", "sub/copy.jsonl", "a/b/copy", "k=v/copy.x"],
)
def test_foreign_file_is_found(out: Path, name: str) -> None:
    for harmless in ("_copy.jsonl", ".copy.jsonl", "sub/_x", "_sub/x", ".sub/deep/x", "sub/_d/x"):
        copied(data_files(out)[0], out / harmless)
    assert verified(out).exit_code == 0
    unknown = copied(data_files(out)[0], out / name)
    assert_found("unknownFiles", unknown, out)


@pytest.mark.parametrize("name", ["copy.parquet", "copy", "sub/copy.parquet"])
@pytest.mark.parametrize("errors", [None, "err", "."])
@pytest.mark.parametrize("format_", ["json", "delta"])
def test_foreign_file_among_the_errors_is_found(
    tmp_path: Path, format_: str, errors: str | None, name: str
) -> None:
    given = job(tmp_path / "job", format=format_)
    given["spec"]["write"]["path"] = str(tmp_path / "all" / "out")
    if errors:
        given["spec"]["errors"]["path"] = str(tmp_path / "all" / errors)
    layout = make_output(given, every_tenth)
    assert verified(layout.output.path).exit_code == 0
    path = Path(layout.errors.path)
    unknown = copied(data_files(path)[0], path / name)
    assert_found("unknownFiles", unknown, layout.output.path)


def test_shared_errors_directory_is_accepted(tmp_path: Path) -> None:
    layouts = []
    for name in ("one", "two"):
        given = job(tmp_path / name)
        given["spec"]["errors"]["path"] = str(tmp_path / "err")
        layouts.append(make_output(given, every_tenth))
    assert [verified(layout.output.path).exit_code for layout in layouts] == [0, 0]


def test_files_from_before_an_append_are_accepted(tmp_path: Path) -> None:
    write_lines(tmp_path / "out", {"before.jsonl": ["{}"]})
    layout = make_output(job(tmp_path, mode="append"))
    assert verified(layout.output.path).exit_code == 0


def test_missing_rows_are_found(layout: Layout, tmp_path: Path) -> None:
    lost = entries_of(layout)[1]
    change_end(layout, lambda entries: [entries[0], *entries[2:]])
    done = verified(layout.output.path)
    rows = sum(after - first for _, first, after in lost["row_ranges"])
    assert done.exit_code == 1
    assert done.counts == {"missing": rows, "orphans": 2, "report": 4 - 1}
    assert done.where("missing") == [
        {"file": str(tmp_path / "in" / f"{file}.txt"), "first": first, "last": after - 1}
        for file, first, after in lost["row_ranges"]
    ]


def test_duplicate_rows_are_found(layout: Layout, tmp_path: Path) -> None:
    change_end(layout, lambda entries: [*entries, entries[-1]])
    done = verified(layout.output.path)
    assert done.exit_code == 1
    assert done.counts == {"duplicated": 50, "report": 3}
    file = str(tmp_path / "in" / "3.txt")
    assert done.where("duplicated") == [{"file": file, "first": 0, "last": 49}]


def test_rows_beyond_the_input_are_found(layout: Layout, tmp_path: Path) -> None:
    """Even if the state says that the input has these rows."""

    def longer(entries: list[Any]) -> list[Any]:
        entries[-1]["row_ranges"] = [[3, 0, 52]]
        entries[-1]["counts"] |= {"read": 52, "filtered": 7}
        return entries

    change_end(layout, longer)
    end = json.loads(layout.final_snapshot.read())
    ends = [[file, 52 if file == 3 else rows] for file, rows in end["ends"]]
    write_end(layout, {**end, "ends": ends})
    done = verified(layout.output.path)
    assert (done.exit_code, done.counts) == (1, {"unknownRows": 2, "report": 1})
    file = str(tmp_path / "in" / "3.txt")
    assert done.where("unknownRows") == [{"file": file, "first": 50, "last": 51}]


def test_rows_removed_with_their_state_are_found(layout: Layout) -> None:
    """The rows of the input are counted again. The row counts in the state are not trusted."""
    end = json.loads(layout.final_snapshot.read())
    entries = [entry for entry in end["entries"] if [3, 0, 50] not in entry["row_ranges"]]
    ends = [[file, 0 if file == 3 else rows] for file, rows in end["ends"]]
    write_end(layout, {**end, "entries": entries, "ends": ends})
    assert verified(layout.output.path).counts["missing"] == 50


def test_changed_input_is_found(out: Path, tmp_path: Path) -> None:
    longer, touched, gone = (tmp_path / "in" / f"{n}.txt" for n in (0, 1, 2))
    longer.write_text(longer.read_text() + "one more\n")
    os.utime(touched)
    gone.unlink()
    done = verified(out)
    assert (done.exit_code, done.counts) == (1, {"inputChanged": 2, "inputGone": 1})
    assert done.where("inputChanged") == [{"file": str(longer)}, {"file": str(touched)}]
    assert done.where("inputGone") == [{"file": str(gone)}]
    assert done.job["inputFilesCounted"] == 1


def test_missing_input_is_found(out: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "in")
    assert verified(out).counts == {"inputGone": 4}


def test_new_input_files_are_ignored(out: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "new.txt").write_text("new\n")
    assert verified(out).exit_code == 0


def test_files_read_twice_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = job(tmp_path, mode="append")
    make_output(append)
    (tmp_path / "in" / "new.txt").write_text("new\n")
    monkeypatch.setattr(OutputTarget, "processed", [])
    layout = make_output(append)
    done = verified(layout.output.path)
    assert (done.exit_code, done.counts) == (1, {"inputTwice": 4})
    assert done.where("inputTwice")[0] == {"file": str(tmp_path / "in" / "0.txt")}


@pytest.mark.parametrize(("ids", "wrong"), [(["0:3", "0:3"], 1), (["0:3", "2:3"], 1),
                                            (["0:3", "9:0"], 1), (["0:3", "0:50"], 1),
                                            (["x", "y"], 0)])  # fmt: skip
def test_duplicate_or_foreign_errors_are_found(tmp_path: Path, ids: list[str], wrong: int) -> None:
    """Even if the error file matches the state."""
    layout = make_output(job(tmp_path), every_tenth)
    end = json.loads(layout.final_snapshot.read())
    entry = next(entry for entry in end["entries"] if entry["row_ranges"][0][:2] == [0, 0])
    file = Path(layout.errors.path) / entry["errors"]["name"]
    table = pq.read_table(file)
    forged = [*ids, *table.column("id").to_pylist()[2:]]
    forge(layout, end, entry, table.set_column(0, "id", [forged]))
    result = {"wrongErrors": wrong} if wrong else {"damaged": 1}
    done = verified(layout.output.path)
    assert (done.exit_code, done.counts) == (1, result)


def test_missing_committed_errors_are_found(layout: Layout) -> None:
    end = json.loads(layout.final_snapshot.read())
    entry = end["entries"][0]
    table = pq.read_table(Path(layout.errors.path) / entry["errors"]["name"])
    forge(layout, end, entry, table.slice(1))
    assert verified(layout.output.path).counts == {"miscounted": 1}


def forge(layout: Layout, end: Any, entry: Any, table: Any) -> None:
    """Replace the error file, and change the state so that it matches."""
    file = Path(layout.errors.path) / entry["errors"]["name"]
    pq.write_table(table, file)
    entry["errors"] = vars(DataFile.of(entry["errors"]["name"], file.read_bytes()))
    write_end(layout, end)


def test_wrong_report_is_found(layout: Layout, messages: Messages) -> None:
    report = json.loads(layout.report.read())
    report["counts"] |= {"read": 201, "failed": 19}
    layout.report.write(json.dumps(report).encode())
    done = verified(layout.output.path)
    assert (done.exit_code, done.counts) == (1, {"report": 2})
    assert "it says 19 failed instead of 20" in invoke(layout.output.path).stdout
    layout.report.write(json.dumps(report | {"counts": None}).encode())
    (finding,) = verified(layout.output.path).job["findings"]
    messages.check([spot["detail"] for spot in finding["where"]])


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}", b"rubbish", b"[" * 100_000, b'{"a":' * 100_000],
    ids=["gone", "empty", "another", "rubbish", "nested", "nested objects"],
)
@pytest.mark.parametrize("name", ["end", "report", "input", "spec", "job"])
def test_damaged_state_is_found(
    layout: Layout, name: str, content: bytes | None, messages: Messages
) -> None:
    location = getattr(layout, {"end": "final_snapshot", "job": "lease_file"}.get(name, name))
    location.delete() if content is None else location.write(content)
    done = invoke(layout.output.path)
    if name == "job" and content is None:
        assert done.exit_code == 2
        messages.check(done.stderr)
        return
    assert done.exit_code == 1
    assert location.uri in done.stdout
    assert verified(layout.output.path).counts == {"state": 1}


def test_unfinished_output_may_lack_files(tmp_path: Path) -> None:
    layout = make_output(job(tmp_path), every_tenth, complete=False)
    gone, damaged = data_files(Path(layout.output.path))
    gone.unlink()
    assert verified(layout.output.path).exit_code == 3, "its rows are done again"
    change(damaged, flip)
    done = verified(layout.output.path)
    assert (done.exit_code, done.counts) == (1, {"damaged": 1})
    assert "unfinished" not in done.result


@pytest.mark.parametrize("output", ["ftp://a/b", "nowhere", "."])
def test_missing_output_ends_with_2(
    output: str, messages: Messages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(output)
    assert (done.exit_code, done.stdout) == (2, "")
    messages.check(done.stderr)


def test_printed_text_says_what_is_wrong_and_what_to_do(out: Path) -> None:
    file = data_files(out)[0]
    file.unlink()
    lines = [line.strip() for line in invoke(out).stdout.splitlines()]
    index = lines.index("gone         1 output files that are missing")
    assert lines[index + 1 : index + 3] == [
        str(file),
        "-> restore them, or run the job again with write.mode overwrite",
    ]
