"""Which files of a directory belong to a format: by extension, or else by their first bytes. Others
are counted by extension and reason."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from batchinference.pipeline.errors import BadInput
from batchinference.pipeline.input import file_rule
from batchinference.pipeline.input.ignored_files import (
    MAX_GROUPS,
    NONE_IGNORED,
    IgnoredFiles,
    Reason,
    similar_names,
)
from batchinference.pipeline.input.input_snapshot import InputSnapshot, as_parquet, read_snapshot
from batchinference.pipeline.input.listing import PathFiles, snapshot_input
from batchinference.pipeline.input.readers.kinds import reader_class
from batchinference.pipeline.storage.location import Location
from batchinference.spec.file_extensions import extension_of
from batchinference.spec.read import FILE_FORMATS, ReadCsv, ReadParquet
from batchinference.spec.storage import FROM_ENVIRONMENT
from support.documents.minimal import Document
from support.documents.parsed import spec_of
from support.inputs.document_files import docx_with, mail_of, pdf_of, pptx_with
from support.inputs.formats import tar_of
from support.inputs.media_files import saved, sound_of
from support.inputs.read_files import read_files


def picture(kind: str) -> bytes:
    return saved(Image.new("RGB", (8, 8), (255, 0, 0)), kind)


def table() -> bytes:
    return as_parquet(pa.table({"v": [1]}))


def sound(kind: str) -> bytes:
    return sound_of(np.zeros(800, np.float32), kind)


def film(kind: str, codec: str, rate: int = 25, sound: str = "") -> bytes:
    """Return a film, or a recording without pictures, in a container of FFmpeg. `sound` is the
    codec of the sound of a film."""
    content = io.BytesIO()
    with av.open(content, "w", format=kind) as container:
        streams = [(container.add_stream(codec, rate=rate), rate)]
        if sound:
            streams.append((container.add_stream(sound, rate=48_000), 48_000))
        for stream, _ in streams:
            if stream.type == "video":
                stream.width = stream.height = 64
                stream.pix_fmt = "yuv420p"
        for stream, rate_ in streams:
            for frame in (*frames_for(stream.type, rate_), None):
                container.mux(stream.encode(frame))
    return content.getvalue()


def frames_for(kind: str, rate: int) -> list[Any]:
    if kind == "video":
        return [av.VideoFrame(64, 64, "rgb24") for _ in range(3)]
    silence = np.zeros((1, 2048), np.float32)
    frame = av.AudioFrame.from_ndarray(silence, format="fltp", layout="mono")
    frame.sample_rate = rate
    return [frame]


def archive() -> bytes:
    return tar_of([("0.txt", b"")])


def numbers(write: Callable[..., None]) -> bytes:
    content = io.BytesIO()
    write(content, np.zeros(3))
    return content.getvalue()


PICTURES = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000", "AVIF", "PPM")
CONTENTS: dict[str, dict[str, Callable[[], bytes]]] = {
    "images": {kind: lambda kind=kind: picture(kind) for kind in PICTURES},  # type: ignore[misc]
    "parquet": {"parquet": table},
    "audio": {
        **{kind: lambda kind=kind: sound(kind) for kind in ("WAV", "FLAC", "MP3", "OGG", "AIFF")},  # type: ignore[misc]
        **{kind: lambda kind=kind: sound(kind) for kind in ("AU", "CAF", "W64", "RF64")},  # type: ignore[misc]
        "M4A": lambda: film("ipod", "aac", 8000),
        "AAC": lambda: film("adts", "aac", 8000),
        "WebM": lambda: film("webm", "libopus", 48_000),
        "3GP": lambda: film("3gp", "aac", 16_000),
        "MOV": lambda: film("mov", "aac", 8000),
        "AMR": lambda: b"#!AMR\n",
    },
    "video": {
        "MP4": lambda: film("mp4", "mpeg4"),
        "MKV": lambda: film("matroska", "mpeg4"),
        "AVI": lambda: film("avi", "mpeg4"),
        "MPEG": lambda: film("mpeg", "mpeg1video"),
        "TS": lambda: film("mpegts", "mpeg2video"),
        "FLV": lambda: film("flv", "flv1"),
        "ASF": lambda: film("asf", "mpeg4"),
    },
    "documents": {
        "PDF": lambda: pdf_of("text"),
        "DOCX": lambda: docx_with(lambda file: file.add_paragraph("text")),
        "PPTX": lambda: pptx_with(lambda file: file.slides.add_slide(file.slide_layouts[6])),
        "HTML": lambda: b"\n<!-- a --><!DOCTYPE HTML><p>text",
        "XHTML": lambda: b'<?xml version="1.0"?>\n<html><p>text</html>',
        "EML": lambda: mail_of("text"),
    },
    "numpy": {"npy": lambda: numbers(np.save), "npz": lambda: numbers(np.savez)},
    "webdataset": {"tar": archive, "tar.gz": lambda: gzip.compress(archive())},
}
"""Contents of the formats that have a signature, by format and kind."""
SIGNED = {
    name: recognizes for name in FILE_FORMATS if (recognizes := reader_class(name).recognizes)
}


@pytest.mark.parametrize("file_format", CONTENTS)
def test_content_shows_the_format(
    file_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kind, content in CONTENTS[file_format].items():
        head = content()[:4096]
        assert {name for name, recognizes in SIGNED.items() if recognizes(head)} == {file_format}, (
            kind
        )


def test_every_format_with_a_signature_is_tested() -> None:
    assert CONTENTS.keys() == SIGNED.keys()


@pytest.mark.parametrize("file_format", SIGNED)
def test_other_content_is_of_no_format(file_format: str) -> None:
    random = np.random.default_rng(0)
    texts = [b"", b"a", b"a,b\n1,2\n", b'{"a": 1}\n', b"P1 is a name\n", b"BM is not a bitmap" * 9]
    binary = [random.bytes(length) for length in (1, 3, 12, 100, 4096)]
    for head in (
        *texts,
        *binary,
        b"%!PS-Adobe\n",
        b"From: a\n",
        b"<p>html</p>",
        b"PK\3\4" + bytes(99),
        b"\x1f\x8bno gzip",
    ):
        assert not SIGNED[file_format](head), head


@pytest.mark.parametrize(
    ("name", "extension"),
    [
        *(("a.TXT", "txt"), ("a.json.gz", "json.gz"), ("a.b.csv", "csv"), ("a.gz", "gz")),
        *(("000000_0", ""), ("part-00001", ""), ("a.1", ""), ("a.2024-01-01", "2024-01-01")),
        *(("a.", ""), ("a.x y", ""), ("a.é", ""), ("a." + "x" * 17, ""), (".hidden", "hidden")),
    ],
)
def test_extension_of_a_name(name: str, extension: str) -> None:
    assert extension_of(name) == extension


def read_names(directory: Path, file_format: str) -> list[str]:
    frozen = snapshot_input([str(directory)], None, kind=FILE_FORMATS[file_format])
    return [Path(file.path).name for file in frozen.files()]


def put(directory: Path, **contents: bytes) -> None:
    for name, content in contents.items():
        (directory / name).write_bytes(content)


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_known_extensions_are_read_in_any_case(tmp_path: Path, file_format: str) -> None:
    names = [
        f"{number}.{ending}" for number, ending in enumerate(FILE_FORMATS[file_format].EXTENSIONS)
    ]
    names += [name.upper() for name in names] or ["a.any"]
    put(tmp_path, **dict.fromkeys(names, b"x"))
    assert read_names(tmp_path, file_format) == sorted(names)


@pytest.mark.parametrize("file_format", CONTENTS)
def test_files_without_known_extension_are_read_if_their_content_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_format: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    content = next(iter(CONTENTS[file_format].values()))()
    good = dict.fromkeys(("000000_0", "a.unknown", "b.1", "c.bin", "part-0"), content)
    bad = {"README": b"text", "d.dat": b"text", "empty": b"", "e.svg": content, "f.zip": content}
    put(tmp_path / "in", **good, **bad)
    assert read_names(tmp_path / "in", file_format) == sorted(good)


def test_files_of_lines_are_read_by_extension_only(tmp_path: Path) -> None:
    put(tmp_path, **{"a.csv": b"a\n1\n", "000000_0": b"a\n2\n", "b.tbl": b"a\n3\n"})
    assert read_names(tmp_path, "csv") == ["a.csv"]
    for path in ("*", "**", "[0ab]*"):
        assert len(snapshot_input([f"{tmp_path}/{path}"], None, kind=ReadCsv).files()) == 3


@pytest.mark.parametrize("codec", ["gzip", "bz2", "zstd", "lz4"])
@pytest.mark.parametrize(("file_format", "name"), [("csv", "A.CSV"), ("text", "a.txt")])
def test_compressed_lines_are_read(tmp_path: Path, codec: str, file_format: str, name: str) -> None:
    ending = {"gzip": "gz", "zstd": "zst"}.get(codec, codec)
    name = f"{name}.{ending.upper() if name.isupper() else ending}"
    name = name.upper() if name.startswith("A") else name
    with pa.output_stream(tmp_path / "content", compression=codec) as stream:
        stream.write(b"text\none\n")
    (tmp_path / "in").mkdir()
    shutil.move(tmp_path / "content", tmp_path / "in" / name)
    rows = [row["text"] for row in read_files(file_format, tmp_path / "in").good]
    assert rows == (["one"] if file_format == "csv" else ["text", "one"])


@pytest.mark.parametrize(
    ("content", "texts", "failed"),
    [
        (gzip.compress(b"a\n") + bytes(100_000), ["a"], 0),
        (gzip.compress(b"a\n") + bytes(9) + gzip.compress(b"b\n"), ["a", "b"], 0),
        (b"", [], 0),
        (gzip.compress(b"a\n")[:-1], ["a"], 1),
        (gzip.compress(b"a\n")[:-5] + bytes(5), [], 1),
        (gzip.compress(b"a\n" * 10**6), ["a"] * 10**6, 0),
    ],
    ids=["padded", "padded members", "empty", "cut", "damaged", "large"],
)
def test_gzip_is_read_to_its_end(
    content: bytes, texts: list[str], failed: int, tmp_path: Path
) -> None:
    (tmp_path / "a.txt.gz").write_bytes(content)
    outcome = read_files("text", tmp_path)
    assert [row["text"] for row in outcome.good] == texts
    assert len(outcome.bad) == failed


NAMES = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(2000)]
LINES = {"text": ("txt", "", "{}\n"), "csv": ("csv", "text\n", "{}\n"),
         "json": ("jsonl", "", '{{"text": "{}"}}\n')}  # fmt: skip
"""By format, the extension, the header, and the line of a name."""


@pytest.mark.parametrize("file_format", LINES)
def test_rows_before_the_missing_end_of_gzip_are_read(tmp_path: Path, file_format: str) -> None:
    extension, header, line = LINES[file_format]
    packed = gzip.compress((header + "".join(map(line.format, NAMES))).encode())
    (tmp_path / f"a.{extension}.gz").write_bytes(packed[: len(packed) // 2])
    outcome = read_files(file_format, tmp_path)
    texts = [row["text"] for row in outcome.good]
    assert 900 < len(texts) < 1100
    assert texts == NAMES[: len(texts)]
    (error,) = outcome.bad.values()
    assert "Compressed file ended" in error


@pytest.mark.parametrize("file_format", LINES)
def test_error_of_damaged_gzip_tells_about_the_rows_before(
    tmp_path: Path, file_format: str
) -> None:
    """Their values cannot be trusted: only the end of the file has a checksum."""
    extension, header, line = LINES[file_format]
    packed = bytearray(gzip.compress((header + "".join(map(line.format, NAMES))).encode()))
    packed[len(packed) // 2] ^= 4
    (tmp_path / f"a.{extension}.gz").write_bytes(packed)
    outcome = read_files(file_format, tmp_path)
    assert outcome.good == []
    (error,) = outcome.bad.values()
    assert "rows before" in error


def test_raw_pictures_are_not_read_as_their_thumbnail(tmp_path: Path) -> None:
    put(tmp_path, **{"a.jpg": picture("JPEG"), "b.dng": picture("TIFF"), "c.nef": picture("TIFF")})
    assert read_names(tmp_path, "images") == ["a.jpg"]


def test_unfinished_files_and_copies_are_not_read(tmp_path: Path) -> None:
    names = ("b.parquet.tmp", "c.parquet._COPYING_", "d.parquet.crc", "e.bak", "f.parquet~")
    put(tmp_path, **{"a.parquet": table(), **dict.fromkeys(names, table())})
    assert read_names(tmp_path, "parquet") == ["a.parquet"]


def test_films_are_no_recordings(tmp_path: Path) -> None:
    recording, mp4 = film("webm", "libopus", 48_000), film("ipod", "aac", 8000)
    pictures = film("matroska", "mpeg4", sound="libopus")
    put(tmp_path, a=recording, b=pictures, **{"c.mp4": mp4, "d.mp4": film("mp4", "mpeg4")})
    assert read_names(tmp_path, "audio") == ["a", "c.mp4"]
    assert read_names(tmp_path, "video") == ["b", "c.mp4", "d.mp4"]


class TestExamination:
    """How many files are opened to see their content."""

    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        paths: list[str] = []
        read = Location.read

        def recording(self: Location, limit: int | None = None) -> bytes:
            assert limit is not None, "only the first bytes are needed"
            paths.append(self.path)
            return read(self, limit)

        monkeypatch.setattr(Location, "read", recording)
        return paths

    def make(self, directory: Path, count: int, good: Callable[[int], bool], name: str) -> None:
        content = table()
        for number in range(count):
            path = directory / name.format(number)
            path.write_bytes(content if good(number) else b"text")

    def test_known_extensions_are_not_opened(self, tmp_path: Path, opened: list[str]) -> None:
        names = ("a.parquet", "b.csv", "c.txt", "d.jpg", "e.zip", "f.json.gz", "_SUCCESS", "g")
        put(tmp_path, **dict.fromkeys(names, table()))
        assert read_names(tmp_path, "parquet") == ["a.parquet", "g"]
        assert opened == [str(tmp_path / "g")]

    @pytest.mark.parametrize("fits", [True, False])
    def test_many_equal_files_are_sampled(
        self, tmp_path: Path, opened: list[str], fits: bool
    ) -> None:
        self.make(tmp_path, 300, lambda _: fits, "{:04}")
        put(tmp_path, **{"z.parquet": table()})
        assert len(read_names(tmp_path, "parquet")) == (301 if fits else 1)
        assert 0 < len(opened) <= file_rule.EXAMINED_SAMPLE

    def test_mixed_files_are_all_opened(self, tmp_path: Path, opened: list[str]) -> None:
        self.make(tmp_path, 300, lambda number: number % 3 == 0, "{:04}")
        assert len(read_names(tmp_path, "parquet")) == 100
        assert len(opened) == 300

    def test_number_of_opened_files_is_limited(self, tmp_path: Path, opened: list[str]) -> None:
        self.make(tmp_path, 300, lambda number: number % 3 == 0, "{:04}")
        rule = replace(file_rule.FileRule.of(None, ReadParquet), max_examined=150)
        files = PathFiles.of(Location(str(tmp_path)), rule)
        assert len(opened) == 150
        assert 0 < len(files.read) < 100
        assert len(files.read) + len(files.ignored) == 300
        assert Reason.UNEXAMINED in files.ignored.values()

    def test_each_unknown_extension_is_examined(self, tmp_path: Path) -> None:
        for number in range(20):
            put(tmp_path, **{f"a.x{number}": table() if number % 2 else b"text"})
        assert len(read_names(tmp_path, "parquet")) == 10


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
    """The text, the warnings and the errors about ignored files."""

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
    """Files below directories are counted, each once."""

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
        location = Location(str(tmp_path / "input.parquet"))
        location.write(frozen.serialized())
        stored = read_snapshot(location, FROM_ENVIRONMENT)
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
