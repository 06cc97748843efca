"""docs/reference.md documents every field."""

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
    """Yield the paths of all fields of a model and of its nested models."""
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
    """Return the cells of a field's first row."""
    found = next(row for row in ROWS if f"`{field}`" in row.split(" | ")[0])
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_every_field_has_a_type_and_a_meaning() -> None:
    first_rows: dict[str, list[str]] = {}
    for row in ROWS:
        first_rows.setdefault(row.split("`")[1], [cell.strip() for cell in row.split(" | ")])
    incomplete = [
        field
        for field, (_, kind, _, meaning, *_) in first_rows.items()
        if not kind or not meaning.strip(" |")
    ]
    assert incomplete == []


def test_table_has_a_row_for_each_field_and_no_others() -> None:
    assert {re.sub(r"^\| \**`(.*?)`.*", r"\1", row) for row in ROWS} == ALL


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
def test_row_holds_type_and_default(field: str, cells: list[str]) -> None:
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
def test_every_variant_of_a_union_has_a_table(heading: str) -> None:
    _, found, rest = TEXT.partition(f"\n{heading}\n")
    assert found
    table = rest.split("\n#")[0]
    assert "| field | type | default | meaning |\n| --- | --- | --- | --- |\n" in table


def test_default_is_shown_for_its_variant_only() -> None:
    defaults = [row for row in ROWS if "`spec.write.compression`" in row]
    assert ["`snappy` |" in row for row in defaults] == [True, False, False]
    assert ["| `none` |" in row for row in defaults] == [False, True, True]


def test_every_row_has_four_cells() -> None:
    assert [row for row in ROWS if len(re.split(r"(?<!\\)\|", row)) != 6] == []
