"""Which files are read: extensions, names, and directories of tables."""

from __future__ import annotations

import bz2
import json
import lzma
import os
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa

from traps import product, views
from traps.case import Case, Cases, Outcome, Refused, Right, Row
from traps.inputs import compressed, lines, packed, parquet
from traps.pictures import RED, heic, picture
from traps.recordings import encoded_sound, sine, sound, video

CASES = Cases("files")


def red(*names: str) -> list[Row]:
    """Return the view of red pictures of 8 x 8 pixels."""
    return [{"path": n, "shape": [8, 8, 3], "first": [*RED], "last": [*RED]} for n in names]


def values(*names: str) -> list[Row]:
    return [{"v": name} for name in names]


def ignored(count: int) -> dict[str, int]:
    return {"FilesIgnored": count}


pictures = CASES.kind(
    "R01",
    "files with unusual extensions",
    read={"format": "images", "options": {"includePaths": True}},
    view=views.image,
    near=2,
)
pictures(
    "pictures as .jpg, .jfif, .jpe, .jp2, .avif and .ppm",
    Right(red("a.jpg", "b.jfif", "c.jpe", "d.jp2", "e.avif", "f.ppm")),
    files={
        "a.jpg": picture(kind="JPEG"),
        "b.jfif": picture(kind="JPEG"),
        "c.jpe": picture(kind="JPEG"),
        "d.jp2": picture(kind="JPEG2000"),
        "e.avif": picture(kind="AVIF"),
        "f.ppm": picture(kind="PPM"),
    },
)
EXTENSIONS = ["jpg", "jfif", "jpe"]
pictures(
    "pictures whose extensions are named by an option",
    Right(red("a.jpg", "b.jfif", "c.jpe")),
    options={"fileExtensions": EXTENSIONS},
    files={
        f"{name}.{end}": picture(kind="JPEG") for name, end in zip("abc", EXTENSIONS, strict=True)
    },
    peers={"ray": {"file_extensions": EXTENSIONS}, "datasets": {"data_files": ["*.j*"]}},
)
pictures(
    "a picture in capitals, one without an extension, and one with the wrong one",
    Right(red("A.JPG", "b", "c.jpg")),
    files={
        "A.JPG": picture(kind="JPEG"),
        "b": picture(),
        "c.jpg": picture(kind="WEBP", lossless=True),
    },
)
pictures(
    "notes and metadata between the pictures",
    Right(red("a.png"), warnings=ignored(2)),
    files={"a.png": picture(), "notes.txt": "about a\n", "a.xmp": "<x/>", ".DS_Store": "x"},
    peers={"daft": {"pattern": "**/*.png"}},
)
pictures(
    "a HEIC file of a telephone",
    Right(red("a.png", "b.heic")),
    Right(red("a.png"), failed=1, says="heic"),
    files={"a.png": picture(), "b.heic": heic},
)
pictures(
    "Parquet as .parquet, .parq, .pq and 000000_0",
    Right(values("a", "b", "c", "d")),
    read={"format": "parquet", "options": {"includePaths": False}},
    view=None,
    files={
        "a.parquet": parquet({"v": ["a"]}),
        "b.parq": parquet({"v": ["b"]}),
        "c.pq": parquet({"v": ["c"]}),
        "000000_0": parquet({"v": ["d"]}),
    },
)
pictures(
    "sounds as .wav, .m4a and .webm",
    Right(
        [
            {"path": "a.wav", "rate": 8000, "channels": 1, "seconds": 1.0, "peak": 0.5},
            {"path": "b.m4a", "rate": 48000, "channels": 1, "seconds": 1.0, "peak": 0.5},
            {"path": "c.webm", "rate": 48000, "channels": 1, "seconds": 1.0, "peak": 0.5},
        ]
    ),
    read={"format": "audio"},
    view=views.sound,
    near=0.3,
    files={
        "a.wav": sound(sine(1)),
        "b.m4a": encoded_sound("ipod", "aac"),
        "c.webm": encoded_sound("webm", "libopus"),
    },
)
pictures(
    "videos as .MP4, .m4v and .webm",
    Right(holds=lambda rows: sorted({row["path"] for row in rows}) == ["a.MP4", "b.m4v", "c.webm"]),
    read={"format": "video"},
    view=views.frame,
    files={
        "a.MP4": video(2, container="mp4", codec="mpeg4", pixels="yuv420p"),
        "b.m4v": video(2, container="mp4", codec="mpeg4", pixels="yuv420p"),
        "c.webm": video(2, container="webm", codec="libvpx-vp9", pixels="yuv420p"),
    },
)
pictures(
    "JSON lines as .jsonl, .ndjson, .json, .jsonl.gz and without an extension",
    Right(values("a", "b", "c", "d", "e")),
    Right(values("a", "b", "c", "d"), warnings=ignored(1)),
    read={"format": "json", "options": {"includePaths": False}},
    view=None,
    files={
        "a.jsonl": lines({"v": "a"}),
        "b.ndjson": lines({"v": "b"}),
        "c.json": lines({"v": "c"}),
        "d.jsonl.gz": packed(lines({"v": "d"})),
        "part-00000": lines({"v": "e"}),
    },
    peers={"pandas": {"pattern": "*"}, "daft": {"pattern": "*"}},
)
pictures(
    "CSV of Hadoop: part-00000 beside a.csv and b.CSV",
    Right(values("a", "b", "c")),
    Right(values("a", "b"), warnings=ignored(1)),
    read={"format": "csv", "options": {"includePaths": False}},
    view=None,
    files={"a.csv": "v\na\n", "b.CSV": "v\nb\n", "part-00000": "v\nc\n"},
    peers={"pandas": {"pattern": "*"}, "daft": {"pattern": "*"}},
)
pictures(
    "all files of a directory have other extensions",
    Refused("heic|dng|txt|end in|no files"),
    files={"a.txt": "x", "b.dng": "x"},
)

TABLE_READ = {"format": "csv", "options": {"includePaths": False}}
pictures(
    "pictures in directories whose names begin with _ and .",
    Right(red("a.png"), warnings=ignored(1)),
    Right(red("a.png", "b.png", "c.png")),
    Right(red("a.png", "b.png"), warnings=ignored(1)),
    files={"a.png": picture(), "_old/b.png": picture(), ".trash/c.png": picture()},
)
pictures(
    "CSV that is packed with gzip, bzip2, xz and zstd",
    Right(values("a", "b", "c", "d")),
    Right(values("a"), warnings=ignored(3)),
    Right(values("a", "b"), warnings=ignored(2)),
    Right(values("a", "b", "d"), warnings=ignored(1)),
    read=TABLE_READ,
    view=None,
    files={
        "a.csv.gz": packed("v\na\n"),
        "b.csv.bz2": lambda: bz2.compress(b"v\nb\n"),
        "c.csv.xz": lambda: lzma.compress(b"v\nc\n"),
        "d.csv.zst": lambda: compressed("zstd", b"v\nd\n"),
    },
    peers={"pandas": {"pattern": "*"}, "daft": {"pattern": "*"}},
)
pictures(
    "gzip that is called .csv",
    Right(values("a")),
    Refused("gzip|utf|decode|header"),
    read=TABLE_READ,
    view=None,
    files={"a.csv": packed("v\na\n")},
    peers={"daft": {"pattern": "*.csv"}},
)
pictures(
    "Parquet that is called .csv",
    Refused("parquet|utf|decode|header"),
    read=TABLE_READ,
    view=None,
    files={"a.csv": parquet({"v": ["a"]})},
    peers={"daft": {"pattern": "*.csv"}},
)


BAD = b"caf\xe9.txt"
"""A file name in Latin-1, which is not valid UTF-8."""


def write_as(*names: bytes) -> Any:
    """Return a function that writes files whose names are bytes."""

    def write(directory: Path) -> None:
        for number, name in enumerate(names):
            path = os.fsencode(directory / "in") + b"/" + name
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write(f"{number}\n")

    return write


def texts(*text: str) -> list[Row]:
    return [{"text": text} for text in text]


def has_escaped(*parts: str) -> Any:
    """Return whether the paths of the rows contain these parts, in any order."""
    return lambda rows: (
        len(rows) == len(parts)
        and all(any(part in str(row["path"]) for row in rows) for part in parts)
    )


latin = CASES.kind("R14", "file names that are not UTF-8", read={"format": "text"})
latin(
    "a file name in Latin-1",
    Right(texts("good", "0")),
    files={"good.txt": "good\n"},
    write=write_as(BAD),
)
latin(
    "a directory name in Latin-1",
    Right(texts("good", "0")),
    files={"good.txt": "good\n"},
    write=write_as(b"d\xe9p\xf4t/a.txt"),
    peers={"daft": {"pattern": "**/*.txt"}},
)
latin(
    "two names that are equal if their bad bytes are replaced",
    Right(texts("0", "1")),
    write=write_as(b"\xe9.txt", b"\xe8.txt"),
)
latin(
    "the path of such a file as a column",
    Right(holds=has_escaped("good.txt", r"caf\xe9.txt")),
    options={"includePaths": True},
    files={"good.txt": "good\n"},
    write=write_as(BAD),
    peers={
        "ray": {"include_paths": True},
        "daft": {"file_path_column": "path"},
        "datasets": "has no option for paths",
    },
)
latin(
    "such a file in a glob",
    Right(texts("0")),
    read={"paths": ["in/caf*.txt"]},
    write=write_as(BAD),
    peers={"daft": {"pattern": "caf*.txt"}},
)
latin(
    "such a file with a value that fails",
    Right(texts("good"), failed=1, says="utf-8|decode"),
    files={"good.txt": "good\n"},
    write=lambda directory: Path(
        os.fsdecode(os.fsencode(directory / "in") + b"/" + BAD)
    ).write_bytes(b"\xfd\xfc\n"),
)

STRANGE = [
    "a b.txt", "a#b.txt", "a%20b.txt", "a%2Fb.txt", "a+b.txt", "a?b.txt", "a[1].txt", "a*.txt",
    "a\nb.txt", "a:b.txt", "a\\b.txt", "a{1,2}.txt", "~a.txt", "a&b=c.txt", "a%3Ab.txt", "a;b.txt",
    "a'b\".txt", "a$HOME.txt", "a|b.txt", "-a.txt", "a .txt", "ä€😀.txt",
]  # fmt: skip
STRANGE_TEXTS = {name: f"{number}\n" for number, name in enumerate(STRANGE)}
STRANGE_ROWS = texts(*map(str, range(len(STRANGE))))


def numbered(row: Row) -> Row:
    return {"text": str(row["text"])}


strange = CASES.kind(
    "R33",
    "names with characters that addresses and patterns use",
    read={"format": "text"},
    view=numbered,
)
strange("22 such names in a directory", Right(STRANGE_ROWS), files=STRANGE_TEXTS)
strange(
    "directories with such names",
    Right(STRANGE_ROWS),
    files={f"{name}/x.txt": text for name, text in STRANGE_TEXTS.items()},
    peers={"daft": {"pattern": "**/*.txt"}},
)
strange(
    "the path of each row is the name of its file",
    Right([{"path": name, "text": text.strip()} for name, text in STRANGE_TEXTS.items()]),
    options={"includePaths": True},
    view=lambda row: {"path": str(row["path"]).split("/in/")[-1], "text": row["text"]},
    files=STRANGE_TEXTS,
    peers={
        "ray": {"include_paths": True},
        "daft": {"file_path_column": "path"},
        "datasets": "has no option for paths",
    },
)
strange(
    "a path in the job that is such a name, without its neighbours",
    Right(texts("6", "18")),
    read={"paths": ["in/a[1].txt", "in/a|b.txt"]},
    files={**STRANGE_TEXTS, "a1.txt": "neighbour\n"},
    peers={
        "ray": lambda at: _ray_texts([f"{at}/in/a[1].txt", f"{at}/in/a|b.txt"]),
        "daft": lambda at: _daft_texts([f"{at}/in/a[1].txt", f"{at}/in/a|b.txt"]),
        "datasets": {"data_files": ["a[1].txt", "a|b.txt"]},
    },
)
strange(
    "a manifest with such names",
    Right(
        [
            {"uri": name, "text": text}
            for name, text in sorted(STRANGE_TEXTS.items())
            if "\n" not in name
        ]
    ),
    read={"format": "manifest", "paths": ["in/list.parquet"], "options": {"decode": "text"}},
    view=None,
    files={
        **STRANGE_TEXTS,
        "list.parquet": parquet({"uri": [name for name in sorted(STRANGE) if "\n" not in name]}),
    },
    peers=dict.fromkeys(("ray", "datasets", "pandas"), "no reader for a table of addresses"),
)


def _strange_output(case: Case, directory: Path, run: product.Run) -> Outcome:
    name = "out/a b#c%20+[1]{x}~:é"
    return product.run_job(case, directory, run, write={"format": "parquet", "path": name})


strange(
    "an output with such a name",
    Right(texts("good")),
    files={"a.txt": "good\n"},
    runs=_strange_output,
    peers=dict.fromkeys(("ray", "daft", "datasets", "pandas"), "not compared"),
)


def _ray_texts(paths: list[str]) -> list[Row]:
    import ray.data

    return list(ray.data.read_text(paths).take_all())


def _daft_texts(paths: list[str]) -> list[Row]:
    import daft

    return list(daft.read_text(paths).to_pylist())


NFC, NFD = (unicodedata.normalize(form, "café.txt") for form in ("NFC", "NFD"))


def _append_renamed(case: Case, directory: Path, run: product.Run) -> Outcome:
    """Run a job with `append`, rename its file as a copy from a Mac is named, and run it again."""
    product.run_job(case, directory, run)
    (directory / "in" / NFC).rename(directory / "in" / NFD)
    return product.run_job(case, directory, run)


SIMILAR = {"SimilarNames": 1}
unicode = CASES.kind("R35", "one name in two Unicode forms", read={"format": "text"})
unicode(
    "both forms in one directory",
    Right(texts("a", "b"), warnings={"SimilarNames": 2}),
    files={NFC: "a\n", NFD: "b\n"},
)
unicode(
    "a file that is renamed to the other form between two runs with append",
    Right(texts("a", "a"), warnings=SIMILAR),
    Right(texts("a"), warnings=SIMILAR),
    Refused("caf|NFC|form"),
    files={NFC: "a\n"},
    output={"format": "parquet", "mode": "append"},
    runs=_append_renamed,
    peers=dict.fromkeys(("ray", "daft", "datasets", "pandas"), "remembers no files between runs"),
)
unicode(
    "a job that names the other form than the disk",
    Refused("exist|caf"),
    Right(texts("a")),
    read={"paths": [f"in/{NFD}"]},
    files={NFC: "a\n"},
    peers={
        "ray": lambda at: _ray_texts([f"{at}/in/{NFD}"]),
        "daft": lambda at: _daft_texts([f"{at}/in/{NFD}"]),
        "datasets": {"data_files": [NFD]},
    },
)
unicode(
    "directories in both forms, with different files",
    Right(texts("a", "b")),
    files={f"{NFC[:4]}/a.txt": "a\n", f"{NFD[:5]}/b.txt": "b\n"},
    peers={"daft": {"pattern": "**/*.txt"}},
)


def _delta(directory: Path, name: str = "in", **options: Any) -> None:
    """Write a Delta table of three rows of which one is deleted."""
    import deltalake

    path = str(directory / name)
    deltalake.write_deltalake(
        path, pa.table({"v": [1, 2, 3], "p": ["a", "b", "b"]}), mode="append", **options
    )
    deltalake.DeltaTable(path).delete("v = 2")


def _iceberg(directory: Path) -> None:
    """Write an Iceberg table of two rows, overwritten by one."""
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog(
        "local", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/in"
    )
    catalog.create_namespace("n")
    table = catalog.create_table(
        "n.t", pa.schema([("v", pa.int64())]), location=f"file://{directory}/in/t"
    )
    table.append(pa.table({"v": [1, 2]}))
    table.overwrite(pa.table({"v": [3]}))


SPARK = {
    "part-00000.snappy.parquet": parquet({"v": [1]}),
    "part-00001.snappy.parquet": parquet({"v": [2]}),
    "_SUCCESS": "",
    "._SUCCESS.crc": "x",
    ".part-00000.snappy.parquet.crc": "x",
    "_temporary/0/part-00002.parquet": parquet({"v": [99]}),
    "_metadata": parquet({"v": [98]}),
    "_common_metadata": parquet({"v": [97]}),
}
tables = CASES.kind("R41", "directories of Spark, Delta and Iceberg", read={"format": "parquet"})
tables("markers, checksums and temporary files of Spark", Right([{"v": 1}, {"v": 2}]), files=SPARK)
tables("a Delta table with a deleted row", Refused("delta"), write=_delta)
tables(
    "an Iceberg table that was overwritten",
    Refused("iceberg"),
    write=_iceberg,
    peers={"ray": {}, "daft": {"pattern": "**/*.parquet"}},
)
tables(
    "a Delta table below the directory",
    Refused("delta"),
    files={"x/a.parquet": parquet({"v": [9], "p": ["z"]})},
    write=lambda at: _delta(at, "in/y"),
    peers={"daft": {"pattern": "**/*.parquet"}},
)
tables(
    "a partitioned Delta table",
    Refused("delta"),
    options={"partitioning": "hive"},
    write=lambda at: _delta(at, partition_by=["p"]),
    peers={"daft": {"pattern": "**/*.parquet", "hive_partitioning": True}},
)
tables(
    "the files of a Delta table as a glob",
    Refused("delta"),
    read={"paths": ["in/*.parquet"]},
    write=_delta,
    peers={"daft": {"pattern": "*.parquet"}},
)
tables(
    "a directory of Hudi",
    Refused("hudi"),
    files={
        "a.parquet": parquet({"v": [1]}),
        ".hoodie/hoodie.properties": "hoodie.table.name=t\n",
        ".hoodie/1.commit": "{}",
    },
)
tables(
    "a Delta table of which only the log is left",
    Refused("delta|no files"),
    files={"_delta_log/00000000000000000000.json": json.dumps({"metaData": {}})},
)
