"""spec.errors: how many rows may fail."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.refusals import refused, short


@pytest.mark.parametrize(
    ("errors", "tolerant"),
    [
        ({}, False),
        ({"maxRows": 0}, False),
        ({"maxPercent": 0}, False),
        ({"maxPercent": 0.0, "maxRows": 0}, False),
        ({"path": "s3://out/errors/"}, False),
        ({"maxRows": 1}, True),
        ({"maxPercent": 0.001}, True),
        ({"maxRows": 0, "maxPercent": 100}, True),
        ({"maxRows": None, "maxPercent": 1}, True),
    ],
    ids=short,
)
def test_error_policy_tolerates_errors_only_with_a_limit(
    errors: dict[str, Any], tolerant: bool
) -> None:
    assert parse(document(errors=errors)).spec.errors.tolerant is tolerant


@pytest.mark.parametrize("format_", ["delta", "lance"])
def test_retry_of_failed_rows_requires_a_file_format(format_: str, messages: Messages) -> None:
    """A table gets a single commit, so rows that are retried later cannot be added to it."""
    write = {"format": format_, "path": "s3://out/table"}
    message = refused(document(write=write, errors={"retryFailedRows": True}))
    messages.check(message)
    assert parse(document(write=write)).spec.why_not_retried == message.removeprefix(
        "spec: errors.retryFailedRows: "
    )
