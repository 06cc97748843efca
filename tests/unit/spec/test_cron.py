"""The times of cron schedules, when clocks are changed too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest

from batchinference.spec.cron import MAX_COUNTED, Cron, check_schedule
from plugins.messages import Messages

BERLIN, NEW_YORK, NUUK = "Europe/Berlin", "America/New_York", "America/Nuuk"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(schedule: str, zone: str, after: str, count: int) -> list[str]:
    """Return the first times of a schedule in local time, with the offset in hours."""
    cron = Cron(schedule, zone)
    astimezones = [time.astimezone(cron.zone) for time in islice(cron.times(at(after)), count)]
    return [f"{time:%d %H:%M} {time.utcoffset() // timedelta(hours=1):+}" for time in astimezones]


@pytest.mark.parametrize(
    ("schedule", "zone", "after", "expected"),
    [
        # 02:00-03:00 of 29 March and 8 March do not exist
        ("30 2 * * *", BERLIN, "2026-03-27 12:00", ["28 02:30 +1", "29 03:00 +2", "30 02:30 +2"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07 00:00", ["07 02:30 -5", "08 03:00 -4", "09 02:30 -4"]),
        ("0,30 2 * * *", BERLIN, "2026-03-29 00:00", ["29 03:00 +2", "30 02:00 +2"]),
        # 02:00-03:00 of 25 October and 01:00-02:00 of 1 November occur twice
        ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["25 02:30 +2", "26 02:30 +1"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["01 01:30 -4", "02 01:30 -5"]),
        # 23:00-24:00 of 28 March does not exist, and that of 24 October occurs twice
        ("59 23 * * *", NUUK, "2026-03-27 12:00", ["27 23:59 -2", "29 00:00 -1", "29 23:59 -1"]),
        ("59 23 * * *", NUUK, "2026-10-24 12:00", ["24 23:59 -1", "25 23:59 -2"]),
        ("0 0 * * *", NUUK, "2026-03-28 12:00", ["29 00:00 -1", "30 00:00 -1"]),
        # hourly schedules follow the elapsed time
        ("0 * * * *", BERLIN, "2026-03-28 23:30", ["29 01:00 +1", "29 03:00 +2"]),
        ("0 * * * *", BERLIN, "2026-10-24 23:30", ["25 02:00 +2", "25 02:00 +1", "25 03:00 +1"]),
        ("*/30 1 * * *", NEW_YORK, "2026-11-01 05:10", ["01 01:30 -4", "01 01:00 -5"]),
    ],
)  # fmt: skip
def test_times_around_a_daylight_saving_change(
    schedule: str, zone: str, after: str, expected: list[str]
) -> None:
    assert local(schedule, zone, after, len(expected)) == expected


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, NUUK, "UTC", "Australia/Lord_Howe"])
@pytest.mark.parametrize(
    "schedule", ["30 1,2 * * *", "15,45 2 * * *", "*/20 * * * *", "0,59 0,23 * * *"]
)
def test_times_do_not_depend_on_the_start(zone: str, schedule: str) -> None:
    cron = Cron(schedule, zone)
    for first in ("2026-03-07 22:00", "2026-03-28 22:00", "2026-10-03 10:00", "2026-10-24 22:00"):
        start = at(first)
        times = list(islice(cron.times(start), 30))
        assert times == sorted(set(times))
        for minutes in range(0, 8 * 60, 7):
            now = start + timedelta(minutes=minutes)
            assert cron.next(now) == next(time for time in times if time > now)


def test_last_due_time_and_the_number_of_due_times() -> None:
    hourly, now = Cron("0 * * * *", "UTC"), at("2026-01-02 12:30")
    assert hourly.due(now - timedelta(minutes=20), now) == (None, 0)
    assert hourly.due(at("2026-01-02 12:00"), now) == (None, 0)
    assert hourly.due(at("2026-01-02 09:59"), at("2026-01-02 12:00")) == (at("2026-01-02 12:00"), 3)


@pytest.mark.parametrize(
    ("schedule", "last"), [("* * * * *", "2026-06-01 00:00"), ("* * 29 2 *", "2024-02-29 23:59")]
)
def test_count_of_due_times_is_limited_and_the_last_is_found(schedule: str, last: str) -> None:
    cron = Cron(schedule, "UTC")
    assert cron.due(at("2020-01-01 00:00"), at("2026-06-01 00:00")) == (at(last), MAX_COUNTED)


@pytest.mark.parametrize(
    "schedule",
    [
        *("0 22-2,5 * * *", "50-10 22-23 * * *", "0 22-2/2 * * *", "0 22-2,22-2/2 * * *"),
        "0 22-2,24 * * *",
    ],
)
def test_fix_of_a_range_over_midnight(schedule: str, messages: Messages) -> None:
    with messages.raises(ValueError):
        check_schedule(schedule)
