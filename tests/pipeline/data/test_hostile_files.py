"""Hostile files: each fails its own rows with the reason, and ends neither process nor job."""

from __future__ import annotations

import ast
import gzip
import io
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.lib import format as npy
from PIL import Image

from batchinference import pipeline
from batchinference.pipeline.input.input_snapshot import as_parquet
from batchinference.pipeline.media.images import FORMATS, open_image
from plugins.messages import Messages
from support.inputs.document_files import docx_with, mail_of, pdf_of, pptx_with, raw_pdf
from support.inputs.formats import pictures, png, tar_of
from support.inputs.media_files import saved, sound_of, write_film
from support.inputs.read_files import open_input, read_files

GOOD = b'{"a": 1}\n'


def npy_header(shape: tuple[int, ...], *, fortran: bool = False) -> bytes:
    buffer = io.BytesIO()
    fields = {"descr": "|u1", "fortran_order": fortran, "shape": shape}
    npy.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def flac(claimed_samples: int) -> bytes:
    content = bytearray(sound_of(np.zeros(100), "FLAC"))
    # in STREAMINFO, the 36-bit sample count follows the rate, the channels and the sample width
    content[21] = content[21] & 0xF0 | claimed_samples >> 32
    content[22:26] = (claimed_samples & 0xFFFFFFFF).to_bytes(4, "big")
    return bytes(content)


def wav(rate: int) -> bytes:
    content = sound_of(np.zeros(1000), "WAV")
    return content.replace(struct.pack("<I", 8000), struct.pack("<I", rate), 1)


def large_png(width: int, height: int) -> bytes:
    return saved(Image.new("1", (width, height)), "PNG")


MIB = 1 << 20
CLAIMS: dict[str, tuple[str, str, Callable[[], bytes], str, dict[str, Any]]] = {
    "array of 2^42 bytes": ("numpy", "a.npy", lambda: npy_header((1, 2**42)),
                            "the file ends before its array of shape (1, 4398046511104) does", {}),
    "array of 2 MiB": ("numpy", "a.npy", lambda: npy_header((2 * MIB,)) + bytes(2 * MIB),
                       "more than maxRowBytes (1048576)", {"maxRowBytes": MIB}),
    "pictures of a sample": ("webdataset", "a.tar", lambda: tar_of(
        (f"a.{n}.png", large_png(2000, 2000)) for n in range(2)),
        "read.options.maxRowBytes: the decoded sample 'a' has more bytes",
        {"maxRowBytes": 20_000_000}),
    "2^36 samples": ("audio", "a.flac", lambda: flac(2**36 - 1),
                     "68719476735 samples take more bytes than maxRowBytes", {}),
    "1 sample a second": ("audio", "a.wav", lambda: wav(1), "samples take more bytes",
                          {"sampleRate": 1_000_000}),
    "2^31 samples a second": ("audio", "a.wav", lambda: wav(2**31 - 1), "not the rate",
                              {"sampleRate": 16_000}),
    "member": ("webdataset", "a.tgz", lambda: tar_of([("a.bin", bytes(2 * MIB))], "w:gz"),
               "read.options.maxRowBytes: the sample 'a' with 'bin' has more bytes",
               {"maxRowBytes": MIB}),
    "line of text": ("text", "a.txt.gz", lambda: gzip.compress(b" " * (2 * MIB)),
                     "read.options.maxRowBytes: the line has more bytes than the limit (1048576)."
                     " Raise the limit, or reduce the size of the line", {"maxRowBytes": MIB}),
    "row of CSV": ("csv", "a.csv.gz", lambda: gzip.compress(b"a\n" + b"1" * (4 * MIB)),
                   "a row has more bytes than maxRowBytes (1048576)", {"maxRowBytes": MIB}),
    "array of JSON": ("json", "a.json.gz", lambda: gzip.compress(b"[" + b" " * (2 * MIB) + b"]"),
                      "read.options.maxRowBytes: the file has more bytes than the limit (1048576)"
                      ". Raise the limit, or reduce the size of the file",
                      {"maxRowBytes": MIB, "lines": False}),
    "file": ("binary", "a.bin", lambda: bytes(2 * MIB),
             "the file has more bytes than the limit (1048576)", {"maxRowBytes": MIB}),
    "pixels": ("images", "a.png", lambda: large_png(8001, 8000),
               "8001 x 8000 pixels are more than maxPixels (64000000)", {}),
    "more pixels than Pillow takes": ("images", "a.png", lambda: large_png(20_000, 10_000),
                                      "the picture has more pixels than maxPixels", {}),
}  # fmt: skip
"""Small files that claim or unpack to a large size: format, name, content, error and options."""


@pytest.mark.parametrize(("format_", "name", "content", "error", "options"), CLAIMS.values(),
                         ids=CLAIMS)  # fmt: skip
def test_a_row_that_would_take_too_much_memory_is_bad(
    format_: str,
    name: str,
    content: Callable[[], bytes],
    error: str,
    options: dict[str, Any],
    tmp_path: Path,
) -> None:
    (tmp_path / name).write_bytes(content())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        outcome = read_files(format_, tmp_path, **options)
    assert outcome.good == []
    ((item, message),) = outcome.bad.items()
    assert (item, error in message) == ((0, 0), True), message


def test_rows_next_to_a_large_row_are_read(tmp_path: Path) -> None:
    limit = {"maxRowBytes": 1024}
    long = b'{"a": "' + b"x" * 5000 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(GOOD + long + GOOD + long + long + GOOD)
    outcome = read_files("json", tmp_path / "a.jsonl", **limit)
    assert (len(outcome.good), set(outcome.bad)) == (3, {(0, 1), (0, 3), (0, 4)})
    sizes = {"a": 10, "b": 5000, "c": 10}
    members = ((f"{key}.bin", bytes(size)) for key, size in sizes.items())
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    outcome = read_files("webdataset", tmp_path / "a.tar", **limit)
    assert (len(outcome.good), set(outcome.bad)) == (2, {(0, 1)})


def test_files_that_expand_when_decoded_are_read_in_small_tables(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(large_png(100, 100))
    opened = open_input("images", tmp_path)
    rows = replace(opened.file_rows, group_bytes=50_000).read(opened.snapshot.files())
    assert [len(batch.ids) for batch in rows] == [2, 2, 2, 2]  # each image has 30,000 bytes


def peak_bytes(format_: str, path: Path, **options: Any) -> int:
    """Return the peak memory in bytes of Python objects and arrays while a file is read."""
    opened = open_input(format_, path, **options)
    tracemalloc.start()
    try:
        for _ in opened.file_rows.read(opened.snapshot.files()):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", [b"x", b"1,22222222222222\n", b'x""', b'""'], ids=str)
def test_long_csv_value_takes_little_more_memory_than_a_row_may_have(
    unit: bytes, tmp_path: Path
) -> None:
    value = unit * (24 * MIB // len(unit))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b'a,b\n1,2\n3,"%b"\n5,6\n' % value, 1))
    limit = 8 * MIB
    assert peak_bytes("csv", tmp_path, maxRowBytes=limit) < 2 * limit + 48 * MIB


def test_large_samples_are_not_inspected_together(tmp_path: Path) -> None:
    members = ((f"{number}.bin", bytes(5 * MIB)) for number in range(10))
    (tmp_path / "a.tar").write_bytes(tar_of(members, "w:gz"))
    tracemalloc.start()
    try:
        open_input("webdataset", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 40 * MIB
    finally:
        tracemalloc.stop()


def test_parquet_file_whose_column_has_no_name_in_utf8_is_a_bad_row(tmp_path: Path) -> None:
    content = as_parquet(pa.table({"nämeless": [1, 2]})).replace("nä".encode(), b"n\xf4\xff")
    (tmp_path / "a.parquet").write_bytes(content)
    assert "UnicodeDecodeError" in read_files("parquet", tmp_path).bad[0, 0]


def test_long_lines_are_found_over_several_chunks(tmp_path: Path) -> None:
    short, long = b"short\n", b"x" * 3000 + b"\n"
    (tmp_path / "a.txt").write_bytes(short * 40 + long + short + long + long + short * 30)
    outcome = read_files("text", tmp_path, maxRowBytes=1024, sizes={"chunk_bytes": 100})
    assert (len(outcome.good), set(outcome.bad)) == (71, {(0, 40), (0, 42), (0, 43)})


def test_max_pixels_above_the_limit_of_pillow_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    content = png(pictures(1)[0])
    with pytest.raises(ValueError, match=r"6 x 5 pixels are more than|more pixels than maxPixels"):
        open_image(content, 12)
    assert open_image(content, 1000).size == (5, 6)


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        b'/* XPM */\nstatic char *x[] = {"1 1 1 1", "a c #000", "a"};',
    ],
    ids=["PostScript", "XPM"],
)
def test_only_pixel_formats_are_opened(content: bytes, tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    outcome = read_files("images", tmp_path)
    messages.check(outcome.bad[0, 0])
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"} <= {*FORMATS}
    assert not {"EPS", "PSD", "WMF", "FITS"} & {*FORMATS}


STREAMS = {
    "session": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
    "m=video 45678 RTP/AVP 96\na=rtpmap:96 H264/90000\n",
    "playlist": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n",
    "list of files": "ffconcat version 1.0\nfile /etc/hostname\n",
}


@pytest.mark.parametrize("text", STREAMS.values(), ids=STREAMS)
def test_videos_that_refer_to_other_files_are_not_opened(text: str, tmp_path: Path) -> None:
    film = tmp_path / "a.mp4"
    film.write_text(text)
    (error,) = read_files("video", film).bad.values()
    assert "Invalid" in error  # rejected by the list of formats, before another file is opened


def test_frames_with_too_many_pixels_are_a_bad_row(tmp_path: Path, messages: Messages) -> None:
    write_film(tmp_path / "a.mkv", [np.zeros((30, 40, 3), np.uint8)], "ffv1", "bgr0")
    assert len(read_files("video", tmp_path, maxPixels=1200).good) == 1
    (error,) = read_files("video", tmp_path, maxPixels=1199).bad.values()
    messages.check(error)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OverflowError("x"), RecursionError(), struct.error("x"), zlib.error("x")],
    ids=lambda error: type(error).__name__,
)
def test_any_exception_of_a_reader_is_a_bad_row(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise error

    for format_ in ("text", "json", "csv", "parquet", "numpy", "webdataset", "video"):
        (tmp_path / "a.any").write_bytes(b"any")
        opened = open_input(format_, tmp_path / "a.any")
        reader = opened.file_rows.reader
        for method in ("read", "read_part", "rows_in"):
            monkeypatch.setattr(type(reader), method, fails, raising=False)
        outcome = opened.read()
        assert [type(error).__name__ in text for text in outcome.bad.values()] == [True], format_
        assert opened.given.count() is not None


def test_no_module_opens_images_or_videos_of_any_format() -> None:
    root = Path(pipeline.__file__).parent
    texts = {
        f"{file.relative_to(root)}: {ast.unparse(node)}"
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("Image.open", "av.open")
    }
    assert texts == {"media/images.py: Image.open", "media/audio.py: av.open"}


def test_carriage_return_line_ends_are_not_a_long_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"a,b,c\r" + b"1,2,3\r" * 6000)
    assert read_files("csv", tmp_path).table.num_rows == 6000


OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504)
CATALOGUE = b"<</Type/Catalog/Pages 2 0 R>>"


def old_office(stream: str) -> bytes:
    return OLE + stream.encode("utf-16-le")


def zipped(**members: str | bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


def changed(content: bytes, member: str, change: Callable[[bytes], bytes]) -> bytes:
    """Return a zip archive with another content of a member."""
    source, buffer = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in source.namelist():
            read = source.read(name)
            archive.writestr(name, change(read) if name == member else read)
    return buffer.getvalue()


def word() -> bytes:
    return docx_with(lambda file: file.add_paragraph("text"))


def with_entities(markup: bytes) -> bytes:
    """Return markup whose text is a local file, and an entity that expands to a large text."""
    kind = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname"><!ENTITY a "aaaaaaaaaa">'
    kind += b"".join(b'<!ENTITY %c "%b">' % (97 + n, b"&%c;" % (96 + n) * 10) for n in range(1, 9))
    head, _, rest = markup.partition(b"?>")
    return head + b"?>" + kind + b"]>" + rest.replace(b">text<", b">&f;&i;<")


def nested(depth: int) -> bytes:
    return b"<!doctype html>" + b"<div>" * depth + b"text"


HOSTILE: dict[str, tuple[str, Callable[[], bytes], dict[str, Any]]] = {
    "empty": ("a.pdf", lambda: b"", {}),
    "cut PDF": ("a.pdf", lambda: pdf_of("text")[:300], {}),
    "encrypted PDF": ("a.pdf", lambda: pdf_of("text", encrypt="secret"), {}),
    "PDF without pages": (
        "a.pdf",
        lambda: raw_pdf(CATALOGUE, b"<</Type/Pages/Kids[]/Count 0>>"),
        {},
    ),
    "PDF of many pages": (
        "a.pdf",
        lambda: raw_pdf(
            CATALOGUE,
            b"<</Type/Pages/Kids[%b]/Count 100001>>" % (b"3 0 R " * 100_001),
            b"<</Type/Page/Parent 2 0 R>>",
        ),
        {},
    ),
    "large page": (
        "a.pdf",
        lambda: pdf_of("text", pagesize=(14_400, 14_400)),
        {"render": {"dpi": 1200}},
    ),
    "many pixels": ("a.pdf", lambda: pdf_of("text"), {"render": {"dpi": 72, "maxPixels": 1000}}),
    "large file": ("a.pdf", lambda: pdf_of("text"), {"maxRowBytes": 1024}),
    "zip bomb": ("a.docx", lambda: zipped(word__document=bytes(1 << 20)), {"maxRowBytes": 100_000}),
    "cut DOCX": ("a.docx", lambda: word()[:5000], {}),
    "entities": ("a.docx", lambda: changed(word(), "word/document.xml", with_entities), {}),
    "encrypted DOCX": ("a.docx", lambda: old_office("EncryptedPackage"), {}),
    "old Word": ("a.doc", lambda: old_office("WordDocument"), {}),
    "old PowerPoint": ("a.ppt", lambda: old_office("PowerPoint Document"), {}),
    "old Excel": ("a.xls", lambda: old_office("Workbook"), {}),
    "Outlook": ("a.msg", lambda: old_office("__properties_version1.0"), {}),
    "workbook": ("a.xlsx", lambda: zipped(xl__workbook="x"), {}),
    "text document": ("a.odt", lambda: zipped(mimetype="x", **{"META-INF__manifest": "x"}), {}),
    "archive": ("a.zip", lambda: zipped(a="x"), {}),
    "text": ("a.txt", lambda: b"some text", {}),
    "no slides": ("a.pptx", lambda: pptx_with(lambda _: None), {}),
    "deep HTML": ("a.html", lambda: nested(10_000), {}),
    "unknown encoding": ("a.html", lambda: b"<meta charset=none><p>a", {}),
    "encoding of Python": ("a.html", lambda: b"<meta charset=punycode><p>a", {}),
    "invalid encoding": ("a.html", lambda: b"<meta charset=utf-8><p>\xff", {}),
    "long headers": (
        "a.eml",
        lambda: b"From: a\nTo: b\nSubject: %b\n\ntext" % (b"text\n " * 20_000),
        {},
    ),
    "long headers of a part": ("a.eml", lambda: mail_of("text", None, "a" * 5_000), {}),
    "cut mail": ("a.eml", lambda: mail_of("text", "<p>html", "a.pdf")[:-20], {}),
}


@pytest.mark.parametrize(("name", "content", "options"), HOSTILE.values(), ids=HOSTILE)
def test_unreadable_document_is_one_failed_row(
    name: str,
    content: Callable[[], bytes],
    options: dict[str, Any],
    tmp_path: Path,
    messages: Messages,
) -> None:
    (tmp_path / name).write_bytes(content())
    (tmp_path / "next.html").write_text("<!doctype html>next")
    outcome = read_files("documents", tmp_path / name, tmp_path / "next.html", **options)
    assert [row["text"] for row in outcome.good] == ["next"]
    assert list(outcome.bad) == [(0, 0)]
    messages.check(outcome.bad[0, 0].replace(str(tmp_path), ""))


def test_html_refers_to_nothing_that_is_fetched(tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        '<!DOCTYPE html [<!ENTITY f SYSTEM "file:///etc/hostname">]><link rel=stylesheet '
        'href="http://127.0.0.1:9/a"><img src="http://127.0.0.1:9/b">&f; text'
    )
    (row,) = read_files("documents", path).good
    assert row["text"].endswith("&f; text")


def test_mail_in_many_parts_is_bounded(tmp_path: Path) -> None:
    head = b"".join(
        b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(3000)
    )
    (tmp_path / "a.eml").write_bytes(b"From: a\nTo: b\n" + head + b"\ntext\n")
    assert len(read_files("documents", tmp_path).bad) == 1
