"""What is wrong is found and named: each defect is made by hand in an output that was right."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from batchinference.pipeline.additions import Target
from batchinference.pipeline.layout import Layout
from batchinference.pipeline.pieces import WrittenFile
from batchinference.pipeline.sealed import SEAL, sealed
from support.committed import commit, every_tenth
from support.documents import Document
from support.job_runs import data_files, job_document, write_lines
from support.verified import invoke, verified

FORMATS = ["parquet", "json", "csv", "numpy", "webdataset"]


def job(directory: Path, **write: Any) -> Document:
    lines = {f"{n}.txt": [f"text {n} {m}" for m in range(50)] for n in range(4)}
    source = write_lines(directory / "in", lines)
    return job_document("job", source, directory / "out", write=write, errors={"maxRows": 1000})


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Of an output in JSON: three commits with a data and an error file each."""
    return commit(job(tmp_path), every_tenth)


@pytest.fixture
def out(layout: Layout) -> Path:
    return Path(layout.output.path)


def change(file: Path, how: Callable[[bytes], bytes]) -> None:
    file.write_bytes(how(file.read_bytes()))


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def change_end(layout: Layout, how: Callable[[list[Any]], list[Any]]) -> None:
    """Change the pieces of output.json."""
    end = json.loads(layout.end.read())
    write_end(layout, {**end, "pieces": how(end["pieces"])})


def write_end(layout: Layout, end: Any) -> None:
    """As somebody would who knows how it is stored."""
    layout.end.write(sealed({name: value for name, value in end.items() if name != SEAL}))


def pieces_of(layout: Layout) -> list[Any]:
    return list(json.loads(layout.end.read())["pieces"])


def error_file(layout: Layout) -> Path:
    return data_files(Path(layout.errors.path))[0]


@pytest.mark.parametrize("options", [[], ["--quick"]], ids=["read", "quick"])
def test_a_file_that_is_gone(out: Path, options: list[str]) -> None:
    file = data_files(out)[0]
    file.unlink()
    done = verified(out, *options)
    assert (done.exit_code, done.result, done.found) == (1, "notProven", {"gone": 1})
    assert done.where("gone") == [{"file": str(file)}]


@pytest.mark.parametrize("options", [[], ["--quick"]], ids=["read", "quick"])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_file_that_was_cut_off(out: Path, part: int, options: list[str]) -> None:
    file = data_files(out)[part]
    change(file, lambda content: content[:-1])
    done = verified(out, *options)
    assert (done.exit_code, done.found) == (1, {"damaged": 1})
    assert done.where("damaged") == [{"file": str(file)}]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_bit_that_has_changed(tmp_path: Path, format_: str) -> None:
    layout = commit(job(tmp_path, format=format_), every_tenth)
    file = data_files(Path(layout.output.path))[1]
    change(file, flip)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"damaged": 1})
    assert done.where("damaged") == [{"file": str(file)}]


@pytest.mark.parametrize("format_", FORMATS)
def test_a_commit_that_says_more_rows_than_its_file_has(tmp_path: Path, format_: str) -> None:
    layout = commit(job(tmp_path, format=format_))

    def more(pieces: list[Any]) -> list[Any]:
        pieces[0]["counts"]["written"] += 1
        return pieces

    change_end(layout, more)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"miscounted": 1, "report": 1})
    (spot,) = done.where("miscounted")
    assert Path(spot["file"]).name == pieces_of(layout)[0]["data"][0]["name"]


@pytest.mark.parametrize("place", ["output", "errors"])
def test_a_file_of_the_job_that_does_not_count(layout: Layout, place: str) -> None:
    directory = Path(getattr(layout, place).path)
    file = data_files(directory)[0]
    orphan = directory / (layout.part_name(1, 0, "deadbeef") + file.suffix)
    shutil.copy(file, orphan)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"orphans": 1})
    assert done.where("orphans") == [{"file": str(orphan)}]


def copied(file: Path, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, to)
    return to


@pytest.mark.parametrize(
    "name",
    ["copy.jsonl", "copy.JSONL", "copy", "notes.txt", "sub/copy.jsonl", "a/b/copy", "k=v/copy.x"],
)
def test_a_file_of_nobody_that_readers_take_for_rows(out: Path, name: str) -> None:
    for harmless in ("_copy.jsonl", ".copy.jsonl", "sub/_x", "_sub/x", ".sub/deep/x", "sub/_d/x"):
        copied(data_files(out)[0], out / harmless)
    assert verified(out).exit_code == 0
    stranger = copied(data_files(out)[0], out / name)
    done = verified(out)
    assert (done.exit_code, done.found) == (1, {"strangers": 1})
    assert done.where("strangers") == [{"file": str(stranger)}]


@pytest.mark.parametrize("place", ["output", "errors"])
def test_a_copy_of_a_file_of_the_job_in_a_directory_below(layout: Layout, place: str) -> None:
    directory = Path(getattr(layout, place).path)
    file = data_files(directory)[0]
    copy = copied(file, directory / "sub" / file.name)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"orphans": 1})
    assert done.where("orphans") == [{"file": str(copy)}]


@pytest.mark.parametrize("name", ["copy.parquet", "copy", "sub/copy.parquet"])
@pytest.mark.parametrize("errors", [None, "err", "."], ids=["inside", "outside", "around"])
@pytest.mark.parametrize("format_", ["json", "delta"])
def test_a_file_of_nobody_among_the_errors(
    tmp_path: Path, format_: str, errors: str | None, name: str
) -> None:
    given = job(tmp_path / "job", format=format_)
    given["spec"]["write"]["path"] = str(tmp_path / "all" / "out")
    if errors:
        given["spec"]["errors"]["path"] = str(tmp_path / "all" / errors)
    layout = commit(given, every_tenth)
    assert verified(layout.output.path).exit_code == 0
    place = Path(layout.errors.path)
    stranger = copied(data_files(place)[0], place / name)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"strangers": 1})
    assert done.where("strangers") == [{"file": str(stranger)}]


def test_errors_of_an_addition_that_there_is_no_more(tmp_path: Path) -> None:
    append = job(tmp_path, mode="append")
    append["spec"]["errors"]["path"] = str(tmp_path / "err")
    commit(append, every_tenth)
    write_lines(tmp_path / "in", {"new.txt": ["new"] * 5})
    added = commit(append, every_tenth, tasks=1)
    assert verified(added.output.path).exit_code == 0
    (left,) = (tmp_path / "err").glob(f"part-{added.key[:8]}-*")
    shutil.rmtree(added.state.path)
    for file in Path(added.output.path).glob(f"part-{added.key[:8]}-*"):
        file.unlink()
    done = verified(added.output.path)
    assert (done.exit_code, done.found) == (1, {"strangers": 1})
    assert done.where("strangers") == [{"file": str(left)}]


def test_several_jobs_may_keep_their_errors_in_one_place(tmp_path: Path) -> None:
    layouts = []
    for name in ("one", "two"):
        given = job(tmp_path / name)
        given["spec"]["errors"]["path"] = str(tmp_path / "err")
        layouts.append(commit(given, every_tenth))
    assert [verified(layout.output.path).exit_code for layout in layouts] == [0, 0]


def test_what_lay_there_before_a_job_added_to_it_is_nobodys_concern(tmp_path: Path) -> None:
    write_lines(tmp_path / "out", {"before.jsonl": ["{}"]})
    layout = commit(job(tmp_path, mode="append"))
    assert verified(layout.output.path).exit_code == 0


def test_rows_of_which_nothing_is_known(layout: Layout, tmp_path: Path) -> None:
    lost = pieces_of(layout)[1]
    change_end(layout, lambda pieces: [pieces[0], *pieces[2:]])
    done = verified(layout.output.path)
    rows = sum(after - first for _, first, after in lost["ranges"])
    assert done.exit_code == 1
    assert done.found == {"missing": rows, "orphans": 2, "report": 4 - 1}
    assert done.where("missing") == [
        {"file": str(tmp_path / "in" / f"{file}.txt"), "first": first, "last": after - 1}
        for file, first, after in lost["ranges"]
    ]


def test_rows_that_are_held_twice(layout: Layout, tmp_path: Path) -> None:
    change_end(layout, lambda pieces: [*pieces, pieces[-1]])
    done = verified(layout.output.path)
    assert done.exit_code == 1
    assert done.found == {"duplicated": 50, "report": 3}
    file = str(tmp_path / "in" / "3.txt")
    assert done.where("duplicated") == [{"file": file, "first": 0, "last": 49}]


def test_rows_that_the_input_does_not_have(layout: Layout, tmp_path: Path) -> None:
    """Even where the state says that it has."""

    def longer(pieces: list[Any]) -> list[Any]:
        pieces[-1]["ranges"] = [[3, 0, 52]]
        pieces[-1]["counts"] |= {"read": 52, "skipped": 7}
        return pieces

    change_end(layout, longer)
    end = json.loads(layout.end.read())
    ends = [[file, 52 if file == 3 else rows] for file, rows in end["ends"]]
    write_end(layout, {**end, "ends": ends})
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"unknown": 2, "report": 1})
    file = str(tmp_path / "in" / "3.txt")
    assert done.where("unknown") == [{"file": file, "first": 50, "last": 51}]


def test_rows_that_the_state_forgets_together_with_their_file(layout: Layout) -> None:
    """The input is counted again: what the state says of its rows is not believed."""
    end = json.loads(layout.end.read())
    pieces = [piece for piece in end["pieces"] if [3, 0, 50] not in piece["ranges"]]
    ends = [[file, 0 if file == 3 else rows] for file, rows in end["ends"]]
    write_end(layout, {**end, "pieces": pieces, "ends": ends})
    assert verified(layout.output.path).found["missing"] == 50


def test_an_input_that_has_changed_since(out: Path, tmp_path: Path) -> None:
    longer, touched, gone = (tmp_path / "in" / f"{n}.txt" for n in (0, 1, 2))
    longer.write_text(longer.read_text() + "one more\n")
    os.utime(touched)
    gone.unlink()
    done = verified(out)
    assert (done.exit_code, done.found) == (1, {"inputChanged": 2, "inputGone": 1})
    assert done.where("inputChanged") == [{"file": str(longer)}, {"file": str(touched)}]
    assert done.where("inputGone") == [{"file": str(gone)}]
    assert done.job["inputFilesCounted"] == 1


def test_an_input_that_is_gone_as_a_whole(out: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "in")
    assert verified(out).found == {"inputGone": 4}


def test_files_that_have_come_since_are_none_of_the_jobs(out: Path, tmp_path: Path) -> None:
    (tmp_path / "in" / "new.txt").write_text("new\n")
    assert verified(out).exit_code == 0


def test_files_that_were_read_once_more_with_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = job(tmp_path, mode="append")
    commit(append)
    (tmp_path / "in" / "new.txt").write_text("new\n")
    monkeypatch.setattr(Target, "known", lambda self, spec: None)
    layout = commit(append)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"inputTwice": 4})
    assert done.where("inputTwice")[0] == {"file": str(tmp_path / "in" / "0.txt")}


def test_a_bad_row_that_is_gone(layout: Layout) -> None:
    file = error_file(layout)
    pq.write_table(pq.read_table(file).slice(1), file)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"damaged": 1})
    assert done.where("damaged") == [{"file": str(file)}]


@pytest.mark.parametrize(("ids", "wrong"), [(["0:3", "0:3"], 1), (["0:3", "2:3"], 1),
                                            (["0:3", "9:0"], 1), (["0:3", "0:50"], 1),
                                            (["x", "y"], 0)])  # fmt: skip
def test_bad_rows_that_are_there_twice_or_of_another_commit(
    tmp_path: Path, ids: list[str], wrong: int
) -> None:
    """Even where the file is as the state says."""
    layout = commit(job(tmp_path), every_tenth)
    end = json.loads(layout.end.read())
    piece = next(piece for piece in end["pieces"] if piece["ranges"][0][:2] == [0, 0])
    file = Path(layout.errors.path) / piece["errors"]["name"]
    table = pq.read_table(file)
    forged = [*ids, *table.column("id").to_pylist()[2:]]
    forge(layout, end, piece, table.set_column(0, "id", [forged]))
    found = {"wrongErrors": wrong} if wrong else {"damaged": 1}
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, found)


def test_bad_rows_that_are_fewer_than_was_committed(layout: Layout) -> None:
    end = json.loads(layout.end.read())
    piece = end["pieces"][0]
    table = pq.read_table(Path(layout.errors.path) / piece["errors"]["name"])
    forge(layout, end, piece, table.slice(1))
    assert verified(layout.output.path).found == {"miscounted": 1}


def forge(layout: Layout, end: Any, piece: Any, table: Any) -> None:
    """Put another error file, and let the state say that it is the one."""
    file = Path(layout.errors.path) / piece["errors"]["name"]
    pq.write_table(table, file)
    piece["errors"] = vars(WrittenFile.of(piece["errors"]["name"], file.read_bytes()))
    write_end(layout, end)


def test_a_report_that_says_something_else(layout: Layout) -> None:
    report = json.loads(layout.report.read())
    report["counts"] |= {"read": 201, "failed": 19}
    layout.report.write(json.dumps(report).encode())
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"report": 2})
    assert "it says 19 failed, and it is 20" in invoke(layout.output.path).stdout


@pytest.mark.parametrize(
    "content",
    [None, b"", b"{}", b"rubbish", b"[" * 100_000, b'{"a":' * 100_000],
    ids=["gone", "empty", "another", "rubbish", "nested", "nested objects"],
)
@pytest.mark.parametrize("name", ["end", "report", "input", "spec", "job"])
def test_state_that_cannot_be_relied_on(layout: Layout, name: str, content: bytes | None) -> None:
    place = getattr(layout, name)
    place.delete() if content is None else place.write(content)
    done = invoke(layout.output.path)
    if name == "job" and content is None:
        assert done.exit_code == 2
        assert "is no output of a BatchInference" in done.stderr
        return
    assert done.exit_code == 1
    assert place.uri in done.stdout
    assert verified(layout.output.path).found == {"state": 1}


def test_an_unfinished_output_may_lack_files_but_hold_no_damaged_ones(tmp_path: Path) -> None:
    layout = commit(job(tmp_path), every_tenth, complete=False)
    gone, damaged = data_files(Path(layout.output.path))
    gone.unlink()
    assert verified(layout.output.path).exit_code == 3, "its rows are done again"
    change(damaged, flip)
    done = verified(layout.output.path)
    assert (done.exit_code, done.found) == (1, {"damaged": 1})
    assert "unfinished" not in done.result


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("ftp://a/b", "verify: 'ftp://a/b': the scheme 'ftp://' is not supported"),
        ("nowhere", "verify: 'nowhere' does not exist"),
        (".", "verify: '.' is no output of a BatchInference"),
    ],
)
def test_where_there_is_no_output_it_ends_with_2(
    output: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = invoke(output)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(words)


def test_a_person_is_told_where_it_is_wrong_and_what_to_do(out: Path) -> None:
    file = data_files(out)[0]
    file.unlink()
    lines = [line.strip() for line in invoke(out).stdout.splitlines()]
    place = lines.index("gone         1 files of the output that are gone")
    assert lines[place + 1 : place + 3] == [
        str(file),
        "-> put them back as they were, or run the job again with write.mode overwrite",
    ]
