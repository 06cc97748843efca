"""Hundreds of scheduled runs against a model: outages, overlaps, suspension, changes of clocks, and
operators that are killed at any request."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest

from support.operator.schedules import Schedules
from support.tiers import examples

BEGINNINGS = [datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 10, 1, tzinfo=UTC)]
DAYS = examples(290, 45)
"""Days of a simulation. A change of clocks follows each beginning in both time zones."""
DEADLINE = timedelta(hours=30)
MINUTE = timedelta(minutes=1)


def daily(start: datetime, zone: str, at: time) -> list[datetime]:
    """Return the documented times of a daily schedule: a time that does not exist runs after the
    gap, and a time that occurs twice runs at the first."""
    result = []
    for day in range(DAYS):
        local = datetime.combine((start + timedelta(days=day)).date(), at, ZoneInfo(zone))
        while local.astimezone(UTC).astimezone(local.tzinfo).time() != local.time():
            local += MINUTE
        result.append(local.astimezone(UTC))
    return [moment for moment in result if moment > start]


class Model:
    """The documented behaviour of a schedule, without names, statuses and requests."""

    def __init__(self, policy: str, start: datetime, times: list[datetime]) -> None:
        self.policy, self.times = policy, times
        self.checked = start
        self.created: list[datetime] = []
        self.active: list[datetime] = []
        self.missed = 0

    def reconcile(self, now: datetime, *, suspended: bool) -> None:
        due = [moment for moment in self.times if self.checked < moment <= now]
        if suspended or not due:
            return
        if now - due[-1] > DEADLINE:
            self.missed += len(due)
        elif self.active and self.policy == "Forbid":
            return
        else:
            self.missed += len(due) - 1
            self.created.append(due[-1])
            self.active = [] if self.policy == "Replace" else self.active
            self.active.append(due[-1])
        self.checked = due[-1]


class Killed(BaseException):
    """The death of the operator, which it does not catch."""


def name_of(moment: datetime) -> str:
    return f"nightly-{int(moment.timestamp()) // 60}"


def reconcile_with_kills(schedules: Schedules, random: Random) -> None:
    """Reconcile until it succeeds. An operator that is killed is replaced by another one."""
    for moment in ("before", "after", "never"):
        left = random.randrange(7)

        def kill(call: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed(call)

        schedules.api.before = kill if moment == "before" else lambda _: None
        schedules.api.after = kill if moment == "after" else lambda _: None
        try:
            schedules.reconcile()
        except Killed:
            schedules.start_operator()
        else:
            break
    schedules.api.before = schedules.api.after = lambda _: None


@pytest.mark.scaled("model-check")
@pytest.mark.parametrize("seed", range(examples(8, 1)))
@pytest.mark.parametrize("start", BEGINNINGS, ids=["spring", "autumn"])
@pytest.mark.parametrize(
    ("policy", "zone", "at"),
    [
        ("Allow", "Europe/Berlin", time(2, 30)),
        ("Forbid", "America/New_York", time(1, 30)),
        ("Replace", "America/New_York", time(2, 30)),
    ],
)
def test_exactly_the_documented_runs_are_created_each_once(
    policy: str, zone: str, at: time, start: datetime, seed: int
) -> None:
    random = Random(f"{policy}{seed}")
    times = daily(start, zone, at)
    model = Model(policy, start, times)
    schedules = Schedules(
        start,
        schedule=f"{at.minute} {at.hour} * * *",
        timeZone=zone,
        concurrencyPolicy=policy,
        startingDeadline=f"{int(DEADLINE.total_seconds())}s",
        successfulRunsHistoryLimit=2,
    )
    suspended, away = False, 0
    for moment in times:
        if random.random() < (0.3 if suspended else 0.02):
            suspended = not suspended
            schedules.patch(suspend=suspended)
        away = random.randrange(1, 4) if random.random() < 0.06 else max(0, away - 1)
        if away:
            continue
        for later in sorted(random.choices(range(1, 23 * 60), k=2)):
            schedules.now = moment + later * MINUTE
            for run in [run for run in model.active if random.random() < 0.7]:
                schedules.finish(name_of(run), at="2026-01-01T00:00:00Z")
                model.active.remove(run)
            model.reconcile(schedules.now, suspended=suspended)
            reconcile_with_kills(schedules, random)
            assert schedules.created == [name_of(run) for run in model.created]
            assert schedules.status["active"] == [name_of(run) for run in model.active]
            assert schedules.status["missedRuns"] == model.missed
    assert len(schedules.created) > 0.6 * DAYS
    assert model.missed > 0
