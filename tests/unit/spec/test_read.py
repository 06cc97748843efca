"""spec.read: each format has its own options and refuses the options of other formats."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from batchinference.spec import SpecError, parse
from batchinference.spec.read import FileOptions
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.refusals import READ_OPTIONS, accepted_at, reading, refused, short

COMMON = [field.alias or name for name, field in FileOptions.model_fields.items()]


@pytest.mark.parametrize(
    "items", [[], [{}], ["a"], [{"a": dt.date(2024, 1, 1)}], [{"a": "x" * 70_000}]], ids=short
)
def test_invalid_items_are_refused(items: Any, messages: Messages) -> None:
    with messages.raises(SpecError):
        parse(document(read={"format": "items", "items": items}))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(65536, 65536), ("65536", 65536), ("64Mi", 64 << 20), ("1.5Ki", 1536), ("2k", 2000)],
)
def test_size_is_a_number_of_bytes_or_has_a_unit(size: int | str, expected: int) -> None:
    rows = parse(reading("csv", maxRowBytes=size)).spec.read.options
    contents = parse(reading("manifest", maxBytes=size)).spec.read.options
    assert (rows.row_bytes, contents.max_bytes) == (expected, expected)


def test_format_accepts_its_own_options() -> None:
    for format_, own in READ_OPTIONS.items():
        dumped = parse(reading(format_)).spec.read.options.model_dump(by_alias=True)
        assert {name: dumped[name] for name in own} == own, format_


def test_format_refuses_options_of_other_formats() -> None:
    every = {name: value for own in READ_OPTIONS.values() for name, value in own.items()}
    for format_, options in READ_OPTIONS.items():
        own = [*COMMON, *options]
        hints = {f". Use one of {', '.join(own)}", *(f"; did you mean '{name}'?" for name in own)}
        for option in every.keys() - options.keys() - {"columns"}:  # that names a step
            message = refused(reading(format_, **{option: every[option]}))
            unknown = f"spec.read.options.{option}: unknown option '{option}' for {format_}"
            assert message in {unknown + hint for hint in hints}


def test_paths_up_to_256_are_accepted() -> None:
    paths = [f"in-{number}" for number in range(256)]
    assert len(accepted_at("spec.read.paths", paths).spec.read.paths) == 256
