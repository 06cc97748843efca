"""Conditions by the rules of kstatus, kubectl wait, Flux, Argo CD and Helm 4."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.status import Condition
from batchinference_operator.status.conditions import (
    MAX_MESSAGE,
    MAX_REASON,
    Verdict,
    conditions,
    holds,
    truncated,
)
from support.operator.kstatus import kstatus
from support.tiers import examples

ACTIVE = Verdict("Running", "rows are being processed")
COMPLETE = Verdict("Succeeded", "100 rows written", complete=True)
FAILED = Verdict("ErrorThreshold", "3 % of the rows failed", failed=True)
SUSPENDED = Verdict("Suspended", "suspend is set; false goes on", suspended=True)
NOON, LATER, LAST = "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z", "2026-03-01T14:00:00Z"


def statuses(found: list[dict[str, Any]]) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in found}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (
            ACTIVE,
            {"Ready": "False", "Complete": "False", "Failed": "False", "Suspended": "False",
             "Reconciling": "True"},
        ),
        (
            COMPLETE,
            {"Ready": "True", "Complete": "True", "Failed": "False", "Suspended": "False"},
        ),
        (
            FAILED,
            {"Ready": "False", "Complete": "False", "Failed": "True", "Suspended": "False",
             "Stalled": "True"},
        ),
        (
            SUSPENDED,
            {"Ready": "True", "Complete": "False", "Failed": "False", "Suspended": "True"},
        ),
    ],
    ids=["active", "complete", "failed", "suspended"],
)  # fmt: skip
def test_four_stand_always_and_the_abnormal_ones_only_while_true(
    verdict: Verdict, expected: dict[str, str]
) -> None:
    assert statuses(conditions(verdict, [], 1, NOON)) == expected


def test_each_carries_reason_message_and_generation() -> None:
    for condition in conditions(FAILED, [], 7, NOON):
        assert condition["reason"] == "ErrorThreshold"
        assert condition["message"] == "3 % of the rows failed"
        assert condition["observedGeneration"] == 7


def test_a_time_stays_while_the_status_stays() -> None:
    first = conditions(ACTIVE, [], 1, NOON)
    second = conditions(Verdict("Starting", "another word"), first, 2, LATER)
    assert {condition["lastTransitionTime"] for condition in second} == {NOON}
    assert {condition["reason"] for condition in second} == {"Starting"}


def test_a_time_changes_with_the_status_and_only_there() -> None:
    first = conditions(ACTIVE, [], 1, NOON)
    times = {c["type"]: c["lastTransitionTime"] for c in conditions(COMPLETE, first, 1, LATER)}
    assert times == {"Ready": LATER, "Complete": LATER, "Failed": NOON, "Suspended": NOON}


def test_a_condition_that_comes_back_has_a_new_time() -> None:
    active = conditions(ACTIVE, [], 1, NOON)
    failed = conditions(FAILED, active, 1, LATER)
    again = {c["type"]: c for c in conditions(ACTIVE, failed, 1, LAST)}
    assert again["Reconciling"]["lastTransitionTime"] == LAST
    assert again["Ready"]["lastTransitionTime"] == NOON


@pytest.mark.parametrize("length", [0, 1, MAX_MESSAGE - 1, MAX_MESSAGE])
def test_a_message_that_fits_is_left_alone(length: int) -> None:
    assert truncated("x" * length) == "x" * length


@pytest.mark.parametrize("length", [MAX_MESSAGE + 1, 20_000])
def test_a_longer_message_is_cut_and_shows_it(length: int) -> None:
    cut = truncated("x" * length)
    assert len(cut) == MAX_MESSAGE
    assert cut == "x" * (MAX_MESSAGE - 3) + "..."


def test_the_words_of_others_are_cut_to_what_the_api_server_takes() -> None:
    verdict = Verdict("R" * 5_000, "m" * 50_000, failed=True)
    for condition in conditions(verdict, [], 1, NOON):
        assert len(condition["reason"]) == MAX_REASON
        assert len(condition["message"]) == MAX_MESSAGE


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, False),
        ({"conditions": []}, False),
        ({"conditions": [{"type": "Failed", "status": "True"}]}, False),
        ({"conditions": [{"type": "Complete", "status": "False"}]}, False),
        ({"conditions": [{"type": "Complete", "status": "Unknown"}]}, False),
        ({"conditions": [{"type": "Complete", "status": "True"}]}, True),
    ],
    ids=["no-status", "none", "another", "false", "unknown", "true"],
)
def test_a_condition_holds_only_with_status_true(status: dict[str, Any], expected: bool) -> None:
    assert holds(status, "Complete") is expected


VERDICTS = st.builds(
    lambda reason, message, end: Verdict(
        reason, message, end == "complete", end == "failed", end == "suspended"
    ),
    st.text(max_size=2_000),
    st.text(max_size=6_000),
    st.sampled_from(["active", "complete", "failed", "suspended"]),
)
TIMES = st.sampled_from([NOON, LATER])
PREVIOUS = st.one_of(
    st.builds(conditions, VERDICTS, st.just([]), st.integers(1, 9), TIMES),
    st.lists(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["Ready", "Complete", "Failed", "Stalled", "Else"]),
                "status": st.sampled_from(["True", "False", "Unknown"]),
                "lastTransitionTime": TIMES,
            }
        ),
        unique_by=lambda condition: condition["type"],
    ),
)


@given(verdict=VERDICTS, previous=PREVIOUS, generation=st.integers(1, 2**40))
@settings(max_examples=examples(200), deadline=None)
def test_conditions_of_any_verdict_follow_the_rules(
    verdict: Verdict, previous: list[dict[str, Any]], generation: int
) -> None:
    found = conditions(verdict, previous, generation, LAST)
    by_type = {condition["type"]: condition for condition in found}
    assert len(by_type) == len(found) <= 8
    assert {"Ready", "Complete", "Failed", "Suspended"} <= set(by_type)
    for abnormal in ("Reconciling", "Stalled"):
        assert by_type.get(abnormal, {"status": "True"})["status"] == "True"
    ends = {"Complete": "Current", "Failed": "Failed", "Suspended": "Current"}
    true = [kind for kind in ends if by_type[kind]["status"] == "True"]
    body = {"metadata": {"generation": generation}, "status": {"conditions": found}}
    assert kstatus(body) == (ends[true[0]] if true else "InProgress")
    assert true == [
        *["Complete"] * verdict.complete,
        *["Failed"] * verdict.failed,
        *["Suspended"] * verdict.suspended,
    ]
    for condition in found:
        Condition.model_validate(condition)


@given(verdict=VERDICTS, previous=PREVIOUS)
@settings(max_examples=examples(200), deadline=None)
def test_times_follow_the_statuses_after_any_past(
    verdict: Verdict, previous: list[dict[str, Any]]
) -> None:
    before = {condition["type"]: condition for condition in previous}
    for condition in conditions(verdict, previous, 1, LAST):
        old = before.get(condition["type"])
        same = old is not None and old["status"] == condition["status"]
        assert condition["lastTransitionTime"] == (old["lastTransitionTime"] if same else LAST)


@given(verdict=VERDICTS, previous=PREVIOUS)
@settings(max_examples=examples(100), deadline=None)
def test_same_verdict_changes_nothing(verdict: Verdict, previous: list[dict[str, Any]]) -> None:
    once = conditions(verdict, previous, 1, LATER)
    assert conditions(verdict, once, 1, LAST) == once
