"""Durations, deadlines, retry rules, and the phases of a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from batchinference.spec.causes import Cause
from batchinference.spec.durations import Duration, DurationOrZero, seconds_of
from batchinference.spec.lifecycle import Backoff, Retry
from batchinference.spec.status import ENDED_PHASES, Phase
from generators.lifecycle import MEANINGS, TRANSITIONS, phases


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("6h", 21_600), ("1h30m", 5400), ("1h1m1s", 3661), ("0s", 0)],
)
def test_duration_is_parsed(text: str, seconds: int) -> None:
    assert TypeAdapter(DurationOrZero).validate_python(text) == text
    assert seconds_of(text) == seconds


@given(st.integers(0, 99), st.integers(0, 999), st.integers(1, 999))
def test_duration_is_the_sum_of_its_parts(hours: int, minutes: int, seconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s"
    assert TypeAdapter(Duration).validate_python(text) == text
    assert seconds_of(text) == 3600 * hours + 60 * minutes + seconds


def test_retry_allows_three_attempts_by_default() -> None:
    retry = Retry()
    assert (retry.max_attempts, retry.backoff, retry.on_cause) == (3, Backoff(), {})
    allowed = [retry.allows(Cause.NODE_LOST, attempts) for attempts in (1, 2, 3)]
    assert allowed == [True, True, False]


@pytest.mark.parametrize("cause", list(Cause))
def test_retry_rule_of_the_job_overrides_the_default(cause: Cause) -> None:
    assert cause.meaning
    assert Retry().allows(cause, 1) is cause.is_retried
    wanted, unwanted = (
        Retry.model_validate({"onCause": {cause.value: word}}) for word in ("Retry", "Fail")
    )
    assert wanted.allows(cause, 1)
    assert not unwanted.allows(cause, 1)
    assert not wanted.allows(cause, 3)


def test_phases_and_transitions_have_a_description() -> None:
    assert set(MEANINGS) == set(Phase)
    assert set(TRANSITIONS) == {None, *Phase}
    for following in TRANSITIONS.values():
        assert all(following.values())


def reached_from(start: Phase | None) -> set[Phase]:
    result: set[Phase] = set()
    following = set(TRANSITIONS[start])
    while following:
        result |= following
        following = {after for before in following for after in TRANSITIONS[before]} - result
    return result


def test_phases_are_reachable_and_lead_to_both_ends() -> None:
    assert reached_from(None) == set(Phase)
    for phase in Phase:
        ends = {after for after in reached_from(phase) if after in ENDED_PHASES}
        final = phase == Phase.SUCCEEDED
        assert ends == (set() if final else {Phase.SUCCEEDED, Phase.FAILED}), phase
        assert phase not in TRANSITIONS[phase]


def test_page_shows_every_transition() -> None:
    rows = [row.split(" | ") for row in phases().splitlines()[2:]]
    shown = {row[0].removeprefix("| "): row[3].removesuffix(" |") for row in rows}
    assert shown == {phase: ", ".join(TRANSITIONS[phase]) or "-" for phase in Phase}
    assert all(why for _, _, why, _ in rows)
