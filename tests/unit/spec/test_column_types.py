"""The notation of column types, which declared columns and fields of JSON documents share."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from batchinference.spec.column_types import parse_type
from support.documents.minimal import document
from support.documents.refusals import READ_OPTIONS


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


def test_every_format_of_files_takes_types_of_partition_values() -> None:
    for format_ in READ_OPTIONS:
        options = {"partitioning": "hive", "types": {"day": "date"}}
        read = {"format": format_, "paths": ["in"], "options": options}
        assert parse(document(read=read)).spec.read.options.types == {"day": "date"}
