"""Calculates the times of a cron schedule in a time zone.

When clocks change, cronsim behaves like Debian's cron. A skipped time runs right after the gap, and
a repeated time runs once. A schedule whose minute or hour begins with `*` follows the elapsed time.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

_FIELDS = {
    "minute": "Write 0 to 59 as the first field",
    "hour": "Write 0 to 23 as the second field",
    "day-of-month": "Write a day that the month has, such as 1, as the third field",
    "month": "Write 1 to 12, or JAN to DEC, as the fourth field",
    "day-of-week": "Write 0 to 7, or SUN to SAT, as the fifth field",
}
"""What to write in each field of a schedule, by its name in the errors of cronsim."""
_LAST = {"minute": 59, "hour": 23}  # the last value of fields in which ranges may be divided
MAX_COUNTED = 1000
"""Maximum number of missed times that are counted."""


def zone_of(name: str) -> ZoneInfo:
    """Return a time zone. Raises ValueError if it is unknown."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        written = zone_like(name) or "a name of the IANA database such as Europe/Berlin"
        raise ValueError(f"there is no such time zone. Write {written}") from None


def zone_like(name: str) -> str:
    """Return the time zone with this name or city, in upper or lower case; empty if there is none.
    Zones below Etc are left out, because their sign is reversed: Etc/GMT+1 is UTC-1."""
    word = name.strip().replace(" ", "_").lower()
    zones = (zone for zone in sorted(available_timezones()) if not zone.startswith("Etc/"))
    return next((zone for zone in zones if f"/{zone}".lower().endswith(f"/{word}")), "")


def check_schedule(schedule: str) -> None:
    """Raise ValueError if a schedule is invalid."""
    try:
        CronSim(schedule, datetime.now(UTC))
    except CronSimError as error:
        problem = str(error).removeprefix("Bad ")
        raise ValueError(f"the {problem} is invalid. {_fix_of(schedule, problem)}") from None


def _fix_of(schedule: str, name: str) -> str:
    """Return how to correct the field `name` of a schedule."""
    if name in _LAST:
        fixed = _with_two_ranges(schedule, name)
        with suppress(CronSimError):  # the field may have another mistake
            CronSim(fixed, datetime.now(UTC))
            return f'Write "{fixed}"'
    return _FIELDS.get(name, "Correct it")


def _with_two_ranges(schedule: str, name: str) -> str:
    """Return a schedule in which no range of the field `name` passes its end: `22-2` becomes
    `22-23,0-2`. A range with a step stays, because the step would begin again."""
    at, fields = [*_FIELDS].index(name), schedule.split()
    parts = fields[at].split(",")
    for number, part in enumerate(parts):
        ends = re.fullmatch(r"(\d+)-(\d+)", part)
        if ends and int(ends[2]) < int(ends[1]):
            parts[number] = f"{ends[1]}-{_LAST[name]},0-{ends[2]}"
    fields[at] = ",".join(parts)
    return " ".join(fields)


class Cron:
    """A cron schedule in a time zone. Its methods return times in UTC."""

    def __init__(self, schedule: str, zone: str) -> None:
        """Raises ValueError if the schedule or the time zone is invalid."""
        check_schedule(schedule)
        self.zone, self._schedule = zone_of(zone), schedule

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield the scheduled times after `after`, in order and without duplicates."""
        for time in CronSim(self._schedule, after.astimezone(self.zone)):
            # a local time that occurs twice can be the one before `after`
            if (time_utc := time.astimezone(UTC)) > after:
                yield time_utc
                after = time_utc

    def next(self, after: datetime) -> datetime | None:
        """Return the first scheduled time after `after`; None if there is none in 50 years."""
        return next(self.times(after), None)

    def due(self, after: datetime, until: datetime) -> tuple[datetime | None, int]:
        """Return the last scheduled time after `after` and up to `until`, or None, and the number
        of such times. The number is at most MAX_COUNTED."""
        times = list(islice(self._between(after, until), MAX_COUNTED))
        if len(times) < MAX_COUNTED:
            return (times[-1] if times else None), len(times)
        # the last time is searched backwards, because there may be millions of times
        window, last = timedelta(hours=1), times[-1]
        while not (recent := list(self._between(max(last, until - window), until))):
            if until - window <= last:
                return last, MAX_COUNTED
            window *= 2
        return recent[-1], MAX_COUNTED

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        return takewhile(lambda time: time <= until, self.times(after))
