"""The notation of column types, which declared columns and fields of JSON documents share."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.column_types import parse_type
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.refusals import READ_OPTIONS, refused, short

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
    "text",
    [
        "int",
        "Text",
        "INT32",
        "uuid",
        "list",
        "list<string",
        "list<string>>",
        "struct<>",
        "struct<a>",
        "struct<a: bool, a: bool>",
        DEEP,
        "decimal",
        "decimal<2, 3>",
        "decimal<77, 2>",
        "decimal<2",
        "timestamp<Mars>",
        "timestamp<us, UTC, UTC>",
    ],
    ids=short,
)
def test_invalid_type_is_refused_with_its_fix(text: str, messages: Messages) -> None:
    read = {"format": "csv", "paths": ["in"], "options": {"types": {"x": text}}}
    messages.check("".join(refused(document(read=read))))


def test_every_format_of_files_takes_types_of_partition_values() -> None:
    for format_ in READ_OPTIONS:
        options = {"partitioning": "hive", "types": {"day": "date"}}
        read = {"format": format_, "paths": ["in"], "options": options}
        assert parse(document(read=read)).spec.read.options.types == {"day": "date"}
