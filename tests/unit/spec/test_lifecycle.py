"""How long a job may take, how often it is tried, and the phases that it goes through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from batchinference.spec.causes import Cause
from batchinference.spec.durations import Duration, DurationOrNone, seconds_of
from batchinference.spec.lifecycle import Backoff, Deadlines, Retry, Ttl
from batchinference.spec.phases import MEANINGS, TRANSITIONS, Phase, diagram

# --- lengths of time --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("6h", 21_600), ("1h30m", 5400), ("1h1m1s", 3661), ("0s", 0)],
)
def test_duration_is_parsed(text: str, seconds: int) -> None:
    assert TypeAdapter(DurationOrNone).validate_python(text) == text
    assert seconds_of(text) == seconds


@given(st.integers(0, 99), st.integers(0, 999), st.integers(1, 999))
def test_parts_of_a_duration_are_added(hours: int, minutes: int, seconds: int) -> None:
    text = f"{hours}h{minutes}m{seconds}s"
    assert TypeAdapter(Duration).validate_python(text) == text
    assert seconds_of(text) == 3600 * hours + 60 * minutes + seconds


@pytest.mark.parametrize("text", ["", "5", "s", "5d", "1.5h", "-1s", "5s1h", "1h 5m", "9999999s"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(DurationOrNone).validate_python(text)


@pytest.mark.parametrize("text", ["0s", "0h0m"])
def test_zero_duration_is_refused_where_invalid(text: str) -> None:
    with pytest.raises(ValidationError, match="above zero, such as 90s"):
        TypeAdapter(Duration).validate_python(text)


# --- retry ------------------------------------------------------------------------------


def test_default_is_three_attempts() -> None:
    retry = Retry()
    assert (retry.max_attempts, retry.backoff, retry.on_cause) == (3, Backoff(), {})
    assert [retry.allows(Cause.NODE_LOST, attempts) for attempts in (1, 2, 3)] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_is_retried_or_not_unless_the_job_says_otherwise(cause: Cause) -> None:
    assert Retry().allows(cause, 1) is cause.retried
    wanted, unwanted = (
        Retry.model_validate({"onCause": {cause.value: word}}) for word in ("retry", "fail")
    )
    assert wanted.allows(cause, 1)
    assert not unwanted.allows(cause, 1)
    assert not wanted.allows(cause, 3)


def test_infrastructure_causes_are_retried_by_default() -> None:
    assert {cause.value for cause in Cause if cause.retried} == {
        "NodeLost",
        "Preempted",
        "OutOfMemory",
        "HeadLost",
        "StorageAway",
        "Stalled",
        "SubmissionFailed",
        "Incomplete",
        "Interrupted",
    }


@pytest.mark.parametrize("cause", list(Cause))
def test_each_cause_says_what_it_means(cause: Cause) -> None:
    assert cause.meaning


@pytest.mark.parametrize(
    "fields",
    [
        {"maxAttempts": 0},
        {"maxAttempts": 101},
        {"onCause": {"Bad luck": "retry"}},
        {"onCause": {"NodeLost": "ignore"}},
        {"backoff": {"max": "0s"}},
        {"backoff": {"factor": 3}},
    ],
    ids=str,
)
def test_invalid_retry_rules_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Retry.model_validate(fields)


def test_unknown_cause_lists_the_known_ones() -> None:
    with pytest.raises(ValidationError, match="no cause 'Bad luck', only NodeLost, Preempted"):
        Retry.model_validate({"onCause": {"Bad luck": "retry"}})


def test_default_has_no_deadlines_and_no_ttl() -> None:
    assert Deadlines().model_dump(exclude_none=True) == {}
    assert (Ttl().cluster, Ttl().ray_job) == ("0s", None)


# --- phases -----------------------------------------------------------------------------


def test_each_phase_says_what_it_means_and_what_leads_on() -> None:
    assert set(MEANINGS) == set(Phase)
    assert set(TRANSITIONS) == {None, *Phase}
    for following in TRANSITIONS.values():
        assert all(following.values())


def reached_from(start: Phase | None) -> set[Phase]:
    found: set[Phase] = set()
    following = set(TRANSITIONS[start])
    while following:
        found |= following
        following = {after for before in following for after in TRANSITIONS[before]} - found
    return found


def test_every_phase_is_reached() -> None:
    assert reached_from(None) == set(Phase)


def test_every_phase_but_an_end_leads_to_both_ends_and_an_end_nowhere() -> None:
    for phase in Phase:
        ends = {after for after in reached_from(phase) if after.ended}
        assert ends == (set() if phase.ended else {Phase.SUCCEEDED, Phase.FAILED})


def test_no_phase_follows_itself() -> None:
    assert not any(before in following for before, following in TRANSITIONS.items())


def test_the_diagram_shows_every_transition() -> None:
    first, *lines = diagram().splitlines()
    assert first == "stateDiagram-v2"
    assert len(lines) == sum(map(len, TRANSITIONS.values()))
    assert "  [*] --> Planning" in lines
    assert "  Running --> Finalizing" in lines
