"""The notation of column types, which declared columns and fields of JSON documents share."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.column_types import parse_type
from support.documents.minimal import document
from support.documents.refusals import READ_OPTIONS, refused

DEEP = "list<" * 40 + "bool" + ">" * 40


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("int64", "int64"),
        ("decimal< 10, 2 >", "decimal<10,2>"),
        ("timestamp", "timestamp<us>"),
        ("timestamp<UTC>", "timestamp<us,UTC>"),
        ("timestamp<ns, +01:00>", "timestamp<ns,+01:00>"),
        (" struct< a:int64,b : list<struct<c: json>> >", {"a": "int64", "b": [{"c": "json"}]}),
        ('struct<"a b": date>', {"a b": "date"}),
    ],
)
def test_type_is_parsed(text: str, parsed: Any) -> None:
    assert parse_type(text) == parsed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int", "Use int64"),
        ("Text", "Use string"),
        ("INT32", "Use int32"),
        ("uuid", "Use one of bool, int8"),
        ("list", "expected <, found the end"),
        ("list<string", "expected >, found the end"),
        ("list<string>>", "'>' follows a complete type"),
        ("struct<>", "expected a name, found >"),
        ("struct<a>", "expected :, found >"),
        ("struct<a: bool, a: bool>", "field 'a' is named twice"),
        (DEEP, "nested more than 32 levels deep"),
        ("decimal", "decimal<10, 2>"),
        ("decimal<2, 3>", "decimal<10, 2>"),
        ("decimal<77, 2>", "76 digits"),
        ("decimal<2", "expected >, found the end"),
        ("timestamp<Mars>", "no time zone 'Mars'"),
        ("timestamp<us, UTC, UTC>", "no time zone 'UTC,UTC'"),
    ],
)
def test_invalid_type_is_refused_with_its_fix(text: str, reason: str) -> None:
    read = {"format": "csv", "paths": ["in"], "options": {"types": {"x": text}}}
    message = "".join(refused(document(read=read)))
    assert message.startswith("spec.read.options.types.x: ")
    assert reason in message


def test_every_format_of_files_takes_types_of_partition_values() -> None:
    for format_ in READ_OPTIONS:
        options = {"partitioning": "hive", "types": {"day": "date"}}
        read = {"format": format_, "paths": ["in"], "options": options}
        assert parse(document(read=read)).spec.read.options.types == {"day": "date"}
