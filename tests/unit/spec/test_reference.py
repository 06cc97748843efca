"""docs/reference.md tells of every field."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.reference import reference
from batchinference.spec.status import BatchInferenceStatus

TEXT = reference()
ROWS = [line for line in TEXT.splitlines() if line.startswith(("| `", "| **`"))]


def fields(model: type[BaseModel], path: str) -> Iterator[str]:
    """The paths of all fields of a model and of those in it, found without the generator."""
    for name, field in model.model_fields.items():
        full = f"{path}.{field.alias or name}"
        yield full
        for inner, mark in inner_models(field.annotation):
            yield from fields(inner, full + mark)


def inner_models(annotation: Any, mark: str = "") -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, mark
    else:
        inside = {list: "[]", dict: ".NAME"}.get(typing.get_origin(annotation), mark)
        for argument in typing.get_args(annotation):
            yield from inner_models(argument, inside)


ALL = {*fields(BatchInferenceSpec, "spec"), *fields(BatchInferenceStatus, "status")}


def row_of(field: str) -> list[str]:
    """The cells of a field's first row."""
    found = next(row for row in ROWS if f"`{field}`" in row.split(" | ")[0])
    return [cell.strip() for cell in found.strip("|").split(" | ")]


@pytest.mark.parametrize("path", sorted(ALL))
def test_every_field_has_a_row(path: str) -> None:
    field, kind, _, meaning = row_of(path)
    assert path in field
    assert kind
    assert meaning.strip()


def test_there_is_no_row_of_anything_else() -> None:
    told = {re.sub(r"^\| \**`(.*?)`.*", r"\1", row) for row in ROWS}
    assert told == ALL


@pytest.mark.parametrize(
    ("field", "cells"),
    [
        (
            "spec.write.mode",
            ["`spec.write.mode`", "one of `error`, `append`, `overwrite`, `ignore`", "`error`"],
        ),
        ("spec.read.paths", ["**`spec.read.paths`**", "list of string", ""]),
        ("spec.read", ["**`spec.read`**", "object, by `format`", ""]),
        ("spec.steps", ["`spec.steps`", "list of object", ""]),
        ("spec.steps[].resources.cpu", ["`spec.steps[].resources.cpu`", "number", "`1.0`"]),
        ("spec.cluster.nodeSelector", ["`spec.cluster.nodeSelector`", "map of string to string"]),
        ("spec.cluster.volumes[].readOnly", ["`spec.cluster.volumes[].readOnly`", "boolean"]),
        ("spec.read.options.include_paths", ["`spec.read.options.include_paths`", "boolean"]),
        ("status.progress.percent", ["`status.progress.percent`", "integer", ""]),
    ],
)
def test_a_row_tells_type_and_default(field: str, cells: list[str]) -> None:
    assert row_of(field)[: len(cells)] == cells


@pytest.mark.parametrize(
    "heading",
    [
        "## spec",
        *(f"### spec.read, format: {name}" for name in ("images", "parquet", "json", "csv")),
        *(f"### spec.read, format: {name}" for name in ("text", "binary", "numpy", "audio")),
        *(f"### spec.read, format: {name}" for name in ("video", "tfrecords", "webdataset")),
        "### spec.read, format: manifest",
        *(f"### spec.steps[].model, runtime: {name}" for name in ("transformers", "torch")),
        *(f"### spec.write, format: {name}" for name in ("parquet", "json")),
        "## status",
    ],
)
def test_every_value_of_a_tag_has_a_table_of_its_own(heading: str) -> None:
    _, found, rest = TEXT.partition(f"\n{heading}\n")
    assert found
    table = rest.split("\n#")[0]
    assert "| field | type | default | meaning |\n| --- | --- | --- | --- |\n" in table


def test_a_default_stands_with_the_value_of_the_tag_that_it_is_for() -> None:
    defaults = [row for row in ROWS if "`spec.write.compression`" in row]
    assert ["`snappy` |" in row for row in defaults] == [True, False, False]
    assert ["| `none` |" in row for row in defaults] == [False, True, True]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("`")[1])
def test_a_row_has_four_cells(row: str) -> None:
    assert len(re.split(r"(?<!\\)\|", row)) == 6
