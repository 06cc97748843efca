"""What is written, and where."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from support.documents.refusals import refused, short, writing

COMPRESSIONS = {
    "parquet": ["snappy", "zstd", "gzip", "lz4", "none"],
    "json": ["gzip", "none"],
    "csv": ["gzip", "none"],
}
EACH = [(format_, name) for format_, names in COMPRESSIONS.items() for name in names]


@pytest.mark.parametrize(("format_", "compression"), EACH)
def test_a_format_takes_its_compressions(format_: str, compression: str) -> None:
    written = parse(writing(format_, compression=compression)).spec.write
    assert (written.format, written.compression) == (format_, compression)


@pytest.mark.parametrize(("format_", "compression"), [("parquet", "snappy"), ("json", "none")])
def test_the_usual_compression_of_a_format(format_: str, compression: str) -> None:
    assert parse(writing(format_)).spec.write.compression == compression


@pytest.mark.parametrize("mode", ["error", "append", "overwrite", "ignore"])
def test_the_modes(mode: str) -> None:
    assert parse(writing("json", mode=mode)).spec.write.mode == mode


@pytest.mark.parametrize(
    ("format_", "fields", "message"),
    [
        ("json", {"compression": "zstd"}, "compression: 'zstd' is not one of gzip, none"),
        (
            "parquet",
            {"compression": "zst"},
            "compression: 'zst' is not one of snappy, zstd, gzip, lz4, none; did you mean 'zstd'?",
        ),
        ("parquet", {"compression": None}, "compression: null is not one of snappy, zstd, gzip"),
        ("json", {"mode": "upsert"}, "mode: 'upsert' is not one of error, append"),
        ("json", {"mode": ["error"]}, "mode: a list is not one of error, append, over"),
        ("cvs", {}, "format: 'cvs' is not one of parquet, json"),
        ("json", {"path": ""}, "path: String should have at least 1 character, got ''"),
        ("json", {"path": None}, "path: Input should be a valid string, got null"),
        (
            "json",
            {"path": "ftp://out"},
            "path: the scheme 'ftp://' is not supported: use a path or ",
        ),
        ("json", {"paths": ["out"]}, "paths: unknown field; did you mean 'path'?"),
        ("json", {"options": {}}, "options: unknown field; there are path, mode"),
    ],
    ids=short,
)
def test_invalid_write_is_refused(format_: str, fields: dict[str, Any], message: str) -> None:
    assert refused(writing(format_, **fields)).startswith(f"spec.write.{message}")


@pytest.mark.parametrize("format_", ["parquet", "json", "csv", "numpy", "webdataset", "images"])
@pytest.mark.parametrize("column", ["_day", ".day"])
def test_directories_that_readers_leave_out_are_refused(format_: str, column: str) -> None:
    message = refused(writing(format_, partitionBy=["class", column]))
    assert message == (
        "spec.write: partitionBy: readers leave out directories whose names begin with "
        f"'{column[0]}', as those of column '{column}' would: rename it first, with a step "
        "renameColumns"
    )


@pytest.mark.parametrize("format_", ["delta", "parquet"])
def test_tables_and_other_names_take_any_column(format_: str) -> None:
    column = {"delta": "_day", "parquet": "day_"}[format_]
    assert parse(writing(format_, partitionBy=[column])).spec.write.partition_by == [column]
