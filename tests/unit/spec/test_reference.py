"""docs/reference.md documents every field."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from batchinference.spec.job import SCHEDULE_KIND, BatchInferenceSpec
from batchinference.spec.report import Report
from batchinference.spec.schedule import ScheduleSpec, ScheduleStatus
from batchinference.spec.status import BatchInferenceStatus
from support.documents.refusals import READ_OPTIONS

TEXT = (Path(__file__).parents[3] / "docs/reference.md").read_text(encoding="utf-8")
"""test_generated_files.py checks that the file is up to date."""
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


ALL = {
    *fields(BatchInferenceSpec, "spec"),
    *fields(BatchInferenceStatus, "status"),
    *fields(ScheduleSpec, f"{SCHEDULE_KIND}.spec"),
    *fields(ScheduleStatus, f"{SCHEDULE_KIND}.status"),
    *fields(Report, "report"),
}


def row_of(field: str) -> list[str]:
    """Return the cells of a field's first row."""
    found = next(row for row in ROWS if f"`{field}`" in row.split(" | ")[0])
    return [cell.strip() for cell in found.strip("|").split(" | ")]


def test_reference_gives_type_and_meaning_of_every_field() -> None:
    for field in {row.split("`")[1] for row in ROWS}:
        _, kind, _, meaning, *_ = row_of(field)
        assert kind, field
        assert meaning, field


def test_reference_has_a_row_for_each_field_and_no_others() -> None:
    assert {re.sub(r"^\| \**`(.*?)`.*", r"\1", row) for row in ROWS} == ALL


@pytest.mark.parametrize(
    ("field", "cells"),
    [
        (
            "spec.write.mode",
            ["`spec.write.mode`", "one of `error`, `append`, `overwrite`", "`error`"],
        ),
        ("spec.read.paths", ["**`spec.read.paths`**", "list of string", ""]),
        ("spec.read", ["**`spec.read`**", "object, by `format`", ""]),
        ("spec.steps", ["`spec.steps`", "list of object", ""]),
        ("spec.steps[].resources.cpu", ["`spec.steps[].resources.cpu`", "quantity", "`1.0`"]),
        ("spec.cluster.nodeSelector", ["`spec.cluster.nodeSelector`", "map of string to string"]),
        (
            "spec.cluster.volumeMounts[].readOnly",
            ["`spec.cluster.volumeMounts[].readOnly`", "boolean"],
        ),
        ("spec.read.options.includePaths", ["`spec.read.options.includePaths`", "boolean"]),
        ("status.progress.percent", ["`status.progress.percent`", "integer", ""]),
    ],
)
def test_reference_row_holds_type_and_default(field: str, cells: list[str]) -> None:
    assert row_of(field)[: len(cells)] == cells


def test_reference_has_a_table_for_each_variant() -> None:
    headings = [
        *("## spec", "## status"),
        *(f"### spec.read, format: {name}" for name in READ_OPTIONS),
        *(f"### spec.steps[].model, runtime: {name}" for name in ("transformers", "torch")),
        *(f"### spec.write, format: {name}" for name in ("parquet", "json")),
    ]
    for heading in headings:
        _, _, rest = TEXT.partition(f"\n{heading}\n")
        table = rest.split("\n#")[0]
        assert "| field | type | default | meaning |\n| --- | --- | --- | --- |\n" in table, heading


def test_reference_shows_a_default_for_its_variant_only() -> None:
    defaults = [row for row in ROWS if "`spec.write.compression`" in row]
    assert ["`snappy` |" in row for row in defaults] == [True, False, False]
    assert ["| `none` |" in row for row in defaults] == [False, True, True]


def test_reference_rows_have_four_cells() -> None:
    assert [row for row in ROWS if len(re.split(r"(?<!\\)\|", row)) != 6] == []
