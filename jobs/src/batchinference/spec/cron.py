"""The times of a cron schedule in a time zone.

cronsim follows Debian's cron, which descends from Vixie cron, also when clocks are changed. A time
that is skipped runs right after the gap, and a time that occurs twice runs once. This is not so if
the minute or the hour begins with `*`: such a schedule follows the elapsed time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

MAX_COUNTED = 1000
"""Maximum number of times that are counted."""


class Cron:
    """A cron schedule. All times are in UTC."""

    def __init__(self, schedule: str, zone: str) -> None:
        """Raises ValueError with the reason if the schedule or the time zone is invalid."""
        try:
            self.zone = ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            way_out = "Use a name of the IANA database such as Europe/Berlin"
            raise ValueError(f"the timeZone '{zone}' is unknown. {way_out}") from None
        self._schedule = schedule
        try:
            CronSim(schedule, datetime.now(UTC))
        except CronSimError as error:
            raise ValueError(f"the schedule '{schedule}' is invalid: {error}") from None

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield the times after another one, in order and each once."""
        for time in CronSim(self._schedule, after.astimezone(self.zone)):
            # an ambiguous local time may also mean the hour before `after`
            if (found := time.astimezone(UTC)) > after:
                yield found
                after = found

    def next(self, after: datetime) -> datetime | None:
        """Return the first time after another one; None if there is none in 50 years."""
        return next(self.times(after), None)

    def due(self, after: datetime, until: datetime) -> tuple[datetime | None, int]:
        """Return the last time after `after` and up to `until`, and the number of such times.

        The time is None if there is none. The number is at most MAX_COUNTED.
        """
        found = list(islice(self._between(after, until), MAX_COUNTED))
        if len(found) < MAX_COUNTED:
            return (found[-1] if found else None), len(found)
        window, last = timedelta(hours=1), found[-1:]
        while not (recent := list(self._between(max(last[0], until - window), until))):
            if until - window <= last[0]:
                return last[0], MAX_COUNTED
            window *= 2
        return recent[-1], MAX_COUNTED

    def _between(self, after: datetime, until: datetime) -> Iterator[datetime]:
        return takewhile(lambda time: time <= until, self.times(after))
