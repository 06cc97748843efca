"""Which files of a directory belong to a format: by extension, or else by their first bytes."""

from __future__ import annotations

import gzip
import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from batchinference.pipeline.input import file_rule
from batchinference.pipeline.input.input_snapshot import as_parquet
from batchinference.pipeline.input.listing import snapshot_input
from batchinference.pipeline.input.readers import reader_class
from batchinference.pipeline.storage.location import Location
from batchinference.spec.file_extensions import extension_of
from batchinference.spec.read import FILE_FORMATS, ReadCsv, ReadParquet
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


def test_extensions_of_a_job_replace_the_rule(tmp_path: Path) -> None:
    put(tmp_path, **{"a.parquet": table(), "b.dat": table(), "000000_0": table()})
    frozen = snapshot_input([str(tmp_path)], ["dat"], kind=ReadParquet)
    assert [Path(file.path).name for file in frozen.files()] == ["b.dat"]


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
        (gzip.compress(b"a\n")[:-1], [], 1),
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

    def test_number_of_opened_files_is_limited(
        self, tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_rule, "MAX_EXAMINED", 150)
        self.make(tmp_path, 300, lambda number: number % 3 == 0, "{:04}")
        frozen = snapshot_input([str(tmp_path)], None, kind=ReadParquet)
        assert len(opened) == 150
        assert 0 < len(frozen) < 100
        assert len(frozen) + frozen.ignored.total == 300
        assert "not examined" in frozen.ignored.text

    def test_each_unknown_extension_is_examined(self, tmp_path: Path) -> None:
        for number in range(20):
            put(tmp_path, **{f"a.x{number}": table() if number % 2 else b"text"})
        assert len(read_names(tmp_path, "parquet")) == 10
