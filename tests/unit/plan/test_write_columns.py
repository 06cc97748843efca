"""The columns that an output names are there, as far as that can be told before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.plan.columns import check_columns, input_columns
from batchinference.spec import BatchInferenceSpec
from support.documents.parsed import spec_of


def writing(format_: str, **fields: Any) -> BatchInferenceSpec:
    """Images with their paths in."""
    read = {"format": "images", "paths": ["s3://in/"], "options": {"include_paths": True}}
    return spec_of(read=read, write={"format": format_, "path": "s3://out/", **fields})


def problems(spec: BatchInferenceSpec) -> list[str]:
    return list(map(str, check_columns(spec, input_columns(spec))))


@pytest.mark.parametrize(
    ("format_", "fields", "problem"),
    [
        ("parquet", {"columns": ["pat"]}, "columns: it names column 'pat', but the columns here "
                                          "are image, path; did you mean 'path'?"),
        ("parquet", {"partitionBy": ["class"]}, "partitionBy: it names column 'class', but the "
                                                "columns here are image, path"),
        ("webdataset", {"keyColumn": "id"}, "keyColumn: it names column 'id', but the columns "
                                            "here are image, path"),
        ("images", {"column": "photo"}, "column: it names column 'photo', but the columns here "
                                        "are image, path"),
        ("images", {"nameColumn": "name"}, "nameColumn: it names column 'name', but the columns "
                                           "here are image, path"),
        ("json", {"columns": ["path"], "partitionBy": ["path"]},
         "partitionBy: every column becomes a directory: nothing is left to write"),
    ],
    ids=["columns", "partitionBy", "keyColumn", "column", "nameColumn", "nothing left"],
)  # fmt: skip
def test_missing_write_column_is_refused(
    format_: str, fields: dict[str, Any], problem: str
) -> None:
    assert problems(writing(format_, **fields)) == [f"spec.write.{problem}"]


@pytest.mark.parametrize(
    ("format_", "fields"),
    [
        ("parquet", {"columns": ["path"]}),
        ("csv", {"columns": ["image"], "partitionBy": ["path"]}),
        ("webdataset", {"keyColumn": "path"}),
        ("images", {"nameColumn": "path"}),
        ("images", {"partitionBy": ["path"]}),
        ("numpy", {}),
    ],
)
def test_columns_that_are_there_pass(format_: str, fields: dict[str, Any]) -> None:
    assert problems(writing(format_, **fields)) == []


def test_unknown_columns_are_not_checked() -> None:
    read = {"format": "parquet", "paths": ["s3://in/"]}
    write = {"format": "images", "path": "s3://out/", "column": "photo"}
    assert problems(spec_of(read=read, write=write)) == []
