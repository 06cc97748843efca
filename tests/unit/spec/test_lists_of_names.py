"""Lists of columns: each is named once."""

from __future__ import annotations

import pytest

from support.documents.minimal import Document, document
from support.documents.refusals import reading, reading_source, refused, short, writing

NAMES = ["a", "b", "a"]


def step(**fields: object) -> Document:
    return document(steps=[{"name": "one", **fields}])


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        (reading("parquet", columns=NAMES), "read.options.columns"),
        (reading("csv", column_names=NAMES), "read.options.column_names"),
        (reading("tfrecords", list_columns=NAMES), "read.options.list_columns"),
        (reading("webdataset", suffixes=NAMES), "read.options.suffixes"),
        (reading_source("lance", options={"columns": NAMES}), "read.options.columns"),
        (
            reading_source("sql", options={"shard_keys": NAMES, "override_num_blocks": 2}),
            "read.options.shard_keys",
        ),
        (step(selectColumns=NAMES), "steps[0].selectColumns"),
        (step(dropColumns=NAMES), "steps[0].dropColumns"),
        (writing("json", columns=NAMES), "write.columns"),
        (writing("json", partitionBy=NAMES), "write.partitionBy"),
    ],
    ids=short,
)
def test_a_column_that_is_named_twice_is_refused(wrong: Document, place: str) -> None:
    assert refused(wrong) == f"spec.{place}: 'a' is named twice"
