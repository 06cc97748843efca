"""Files of a directory that are not read are counted by extension and reason."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import file_rule
from batchinference.pipeline.input.ignored_files import (
    MAX_GROUPS,
    NONE_IGNORED,
    IgnoredFiles,
    Reason,
    similar_names,
)
from batchinference.pipeline.input.input_snapshot import InputSnapshot, read_snapshot
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.storage.location import Location
from batchinference.spec.read import FILE_FORMATS
from batchinference.spec.storage import FROM_ENVIRONMENT
from support.documents.minimal import Document
from support.documents.parsed import spec_of


def make(directory: Path, *names: str, content: bytes = b"x") -> Path:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def listed(*paths: Path | str, file_format: str = "images") -> InputSnapshot:
    return snapshot_input([str(path) for path in paths], None, kind=FILE_FORMATS[file_format])


def reasons(ignored: IgnoredFiles) -> dict[str, tuple[Reason, int]]:
    return {group.extension: (group.reason, group.count) for group in ignored.groups}


def test_each_file_is_read_or_counted_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_rule, "reads_heif", lambda: False)
    names = ("a.jpg", "sub/b.PNG", "c.txt", "sub/D.TXT", "e.heic", "f.tmp", "g", "h.unknown")
    make(tmp_path, *names)
    make(tmp_path, "i.empty", content=b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "broken.png").symlink_to("nothing")
    frozen = listed(tmp_path)
    assert [Path(file.path).name for file in frozen.files()] == ["a.jpg", "b.PNG"]
    assert reasons(frozen.ignored) == {
        "txt": (Reason.EXTENSION, 2),
        "": (Reason.CONTENT, 1),
        "unknown": (Reason.CONTENT, 1),
        "heic": (Reason.PACKAGE, 1),
        "tmp": (Reason.TEMPORARY, 1),
        "empty": (Reason.EMPTY, 1),
        "jpg": (Reason.SPECIAL, 1),
        "png": (Reason.SPECIAL, 1),
    }
    assert frozen.ignored.total == 9


def test_file_that_cannot_be_opened_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Location, limit: int | None = None) -> bytes:
        raise PermissionError(13, "Permission denied", self.path)

    monkeypatch.setattr(Location, "read", refuse)
    frozen = listed(make(tmp_path, "a.jpg", "b"))
    assert reasons(frozen.ignored) == {"": (Reason.UNREADABLE, 1)}


def test_storage_that_does_not_answer_is_no_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Location, limit: int | None = None) -> bytes:
        raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation")

    monkeypatch.setattr(Location, "read", fail)
    with pytest.raises(BadInput, match="cannot be listed"):
        listed(make(tmp_path, "a.jpg", "b"))


class TestText:
    """What people see."""

    def test_text_names_the_largest_groups_first(self) -> None:
        ignored = IgnoredFiles.of(
            {"a/1.heic": Reason.PACKAGE, "a/2.heic": Reason.PACKAGE, "b.txt": Reason.EXTENSION}
        )
        assert ignored.text.startswith("3 files ignored: .heic 2 (")
        assert ignored.text.endswith("), .txt 1")
        assert IgnoredFiles.of({"a": Reason.CONTENT}).text.startswith("1 file ignored: no ext")
        assert NONE_IGNORED.text == ""

    def test_warning_has_the_numbers_an_example_and_a_fix(self) -> None:
        ignored = IgnoredFiles.of({f"in/{n}.txt": Reason.EXTENSION for n in (2, 1)})
        (warning,) = ignored.warnings()
        assert (warning.name, warning.count, warning.step) == ("FilesIgnored", 2, None)
        assert warning.example == "in/1.txt"
        assert ".txt 2" in warning.message
        assert "read.options.fileExtensions" in warning.message

    def test_paths_are_shortened_and_shown_without_controls(self) -> None:
        ignored = IgnoredFiles.of({"x/" * 2000 + "a\x1b[2J\n.txt": Reason.EXTENSION})
        (warning,) = ignored.warnings()
        assert warning.example is not None
        assert len(warning.example) <= 512
        assert warning.example.isprintable()

    def test_many_extensions_become_one_group(self) -> None:
        named = {f"{n}.x{n}": Reason.EXTENSION for n in range(1000)}
        common = {f"{n}.csv": Reason.EXTENSION for n in range(30)}
        ignored = IgnoredFiles.of({**named, **common})
        assert len(ignored.groups) == MAX_GROUPS + 1
        assert (ignored.groups[0].extension, ignored.groups[0].count) == ("csv", 30)
        assert sum(group.count for group in ignored.groups) == ignored.total == 1030
        assert len(ignored.text) < 300
        assert "others" in ignored.text
        assert len(ignored.serialized()) < 10_000


class TestHiddenFiles:
    """Files that programs leave are normal. Other hidden files may be data."""

    def test_markers_of_programs_do_not_alarm(self, tmp_path: Path) -> None:
        make(tmp_path, "part-0.parquet", "_SUCCESS", "._SUCCESS.crc", ".part-0.parquet.crc")
        make(tmp_path, "_temporary/0/part-1.parquet", "_metadata", "_committed_1", "_started_1")
        make(tmp_path, "_spark_metadata/0", ".DS_Store", "__MACOSX/._part-0.parquet")
        make(tmp_path, "._part-0.parquet", ".git/HEAD", "_delta_log/note.txt", "Thumbs.db")
        make(tmp_path, ".ipynb_checkpoints/a.parquet", ".hidden.txt", "_batchinference/x.parquet")
        ignored = listed(tmp_path, file_format="parquet").ignored
        assert (ignored.total, ignored.text, ignored.warnings()) == (0, "", [])
        assert ignored.markers == 17

    def test_hidden_data_is_counted(self, tmp_path: Path) -> None:
        make(tmp_path, "a.jpg", "_photos/b.jpg", "_photos/sub/c.png", ".d.jpg", "_photos/e.txt")
        make(tmp_path, "sub/_f.JPG")
        ignored = listed(tmp_path).ignored
        hidden = {"jpg": (Reason.HIDDEN, 3), "png": (Reason.HIDDEN, 1), "txt": (Reason.MARKER, 1)}
        assert reasons(ignored) == hidden
        assert "hidden" in ignored.text
        assert ignored.total == 4

    def test_data_in_directories_named_as_files_of_programs_is_counted(
        self, tmp_path: Path
    ) -> None:
        make(tmp_path, "a.jpg", "_metadata/b.jpg", "_logs/c.jpg", "_tmp_v2/d.jpg", "_tmp")
        assert reasons(listed(tmp_path).ignored)["jpg"] == (Reason.HIDDEN, 3)

    def test_hidden_files_that_would_be_examined_are_counted(self, tmp_path: Path) -> None:
        make(tmp_path, "a.parquet", "_hive/000000_0", "_hive/b.dat", "_hive/c.txt")
        ignored = listed(tmp_path, file_format="parquet").ignored
        hidden = {"": (Reason.HIDDEN, 1), "dat": (Reason.HIDDEN, 1), "txt": (Reason.MARKER, 1)}
        assert reasons(ignored) == hidden
        assert ignored.total == 2

    def test_directory_that_is_named_is_not_hidden(self, tmp_path: Path) -> None:
        make(tmp_path, "_photos/b.jpg", "_photos/_c.jpg")
        for path in ("_photos", "_p*"):
            frozen = listed(tmp_path / path)
            assert [Path(file.path).name for file in frozen.files()] == ["b.jpg"]
            assert frozen.ignored.total == 1

    def test_partitions_are_not_hidden(self, tmp_path: Path) -> None:
        make(tmp_path, "_class=cat/a.jpg", "_x/class=cat/b.jpg", "_class=cat/_c.jpg")
        for path in ("", "*", "*/*"):
            frozen = listed(tmp_path / path)
            assert [Path(file.path).name for file in frozen.files()] == ["a.jpg"], path
            assert frozen.ignored.total == 2

    def test_hidden_matches_of_a_glob_are_counted(self, tmp_path: Path) -> None:
        make(tmp_path, "a.jpg", "_photos/b.jpg", "x/c.jpg", "_SUCCESS", "x/_d.jpg")
        frozen = listed(tmp_path / "*")
        assert [Path(file.path).name for file in frozen.files()] == ["a.jpg", "c.jpg"]
        assert (frozen.ignored.total, frozen.ignored.markers) == (2, 1)
        assert listed(tmp_path / "*" / "*.jpg").ignored.total == 2


class TestPaths:
    """Files are counted below directories, and once."""

    def test_files_that_no_glob_matches_are_not_counted(self, tmp_path: Path) -> None:
        make(tmp_path, "a.jpg", "b.txt", "sub/c.jpg", "sub/d.txt")
        assert listed(tmp_path / "*.jpg").ignored == NONE_IGNORED
        assert listed(tmp_path / "a.jpg").ignored == NONE_IGNORED
        assert reasons(listed(tmp_path / "s*").ignored) == {"txt": (Reason.EXTENSION, 1)}

    def test_file_that_another_path_reads_is_not_ignored(self, tmp_path: Path) -> None:
        make(tmp_path, "a.jpg", "b.txt", "c.txt", "sub/d.txt", "sub/e.jpg")
        frozen = listed(tmp_path, tmp_path / "b.txt", tmp_path / "sub", tmp_path / "c.tx?")
        assert len(frozen) == 4
        assert reasons(frozen.ignored) == {"txt": (Reason.EXTENSION, 1)}

    def test_all_files_of_the_format_binary_are_read(self, tmp_path: Path) -> None:
        make(tmp_path, "a.jpg", "b", "c.tmp", "_SUCCESS", "_data/d")
        frozen = listed(tmp_path, file_format="binary")
        assert len(frozen) == 3
        assert (frozen.ignored.total, frozen.ignored.markers) == (1, 1)


class TestStored:
    """The ignored files are stored with the input snapshot."""

    def test_ignored_files_are_read_back(self, tmp_path: Path) -> None:
        frozen = listed(make(tmp_path / "in", "a.jpg", "b.txt", "_SUCCESS"))
        place = Location(str(tmp_path / "input.parquet"))
        place.write(frozen.serialized())
        stored = read_snapshot(place, FROM_ENVIRONMENT)
        assert stored.ignored == frozen.ignored
        assert stored.table == frozen.table
        limited = frozen.limited([1], 1).with_stats({})
        assert limited.ignored == frozen.ignored

    def test_snapshot_of_an_earlier_version_ignores_nothing(self, tmp_path: Path) -> None:
        frozen = listed(make(tmp_path / "in", "a.jpg"))
        assert InputSnapshot.parse(frozen.serialized(), FROM_ENVIRONMENT).ignored == NONE_IGNORED

    @pytest.mark.parametrize("content", [b"", b"[]", b'{"groups": [1]}', b"\xff"])
    def test_damaged_content_is_an_error(self, content: bytes) -> None:
        with pytest.raises(ValueError, match="IgnoredFiles"):
            IgnoredFiles.parse(content)


class TestSimilarNames:
    """Two names that look the same may be one file, copied from a Mac."""

    NFC, NFD = (unicodedata.normalize(form, "café.txt") for form in ("NFC", "NFD"))

    def test_names_that_differ_in_their_unicode_form(self) -> None:
        assert similar_names(["a", self.NFC, "b"]) == []
        assert similar_names([self.NFC, self.NFD, self.NFC]) == [self.NFC, self.NFD]
        assert similar_names([self.NFD], [self.NFC]) == [self.NFD]
        assert similar_names([self.NFC], [self.NFC]) == []
        assert similar_names(["é/a", unicodedata.normalize("NFD", "é/a")]) != []


@pytest.mark.parametrize(
    ("limit", "refused"),
    [({}, False), ({"maxRows": 2}, False), ({"maxRows": 1}, True), ({"action": "fail"}, True)],
)
def test_job_may_refuse_ignored_files(tmp_path: Path, limit: Document, refused: bool) -> None:
    others = {"name": "SimilarNames", "action": "fail"}
    policies = spec_of(errors={"warnings": [others, {"name": "FilesIgnored", **limit}]})
    ignored = listed(make(tmp_path, "a.jpg", "b.txt", "c.txt", "_SUCCESS")).ignored
    NONE_IGNORED.check(policies.errors.warnings)
    if not refused:
        ignored.check(policies.errors.warnings)
        return
    with pytest.raises(BadInput, match=r"errors.warnings\[1\].*FilesIgnored.*\.txt 2"):
        ignored.check(policies.errors.warnings)
