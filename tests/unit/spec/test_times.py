"""Time stamps of Kubernetes objects and of reports."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from batchinference.spec.durations import time_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01T12:00:00Z", NOON),
        ("2026-03-01T14:00:00+02:00", NOON),
        ("2026-03-01T11:30:00.000000-00:30", NOON),
        ("2026-03-01T12:00:00.250999999Z", NOON.replace(microsecond=250_999)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_stamp_is_read_in_utc(text: str, time: datetime) -> None:
    result = time_of(text)
    assert (result, result and result.tzinfo) == (time, UTC)


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2026-03-01", "20260301T120000Z", "2026-03-01 12:00:00Z"),
        *("2026-03-01T12:00:00", "2026-03-01t12:00:00z", "2026-03-01T12:00:00Z "),
        *("2026-02-30T12:00:00Z", "2026-03-01T24:00:00Z", "2026-03-01T12:00:00+99:99"),
        *("2026-W01-1T03:05:05Z", "2026-01-02T03:05:05+00"),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "\uff10026-03-01T12:00:00Z"),
    ],
)
def test_other_text_is_not_a_time(text: str) -> None:
    assert time_of(text) is None
