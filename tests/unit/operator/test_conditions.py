"""The conditions of a job, by the rules of kstatus, kubectl wait, Flux, Argo CD and Helm 4."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.spec.base import REASON
from batchinference.spec.status import Condition
from batchinference_operator.status.conditions import (
    MAX_MESSAGE,
    Summary,
    build_conditions,
    is_condition_true,
    truncate_message,
)
from support.operator.kstatus import kstatus
from support.tiers import examples

ACTIVE = Summary("Running", "rows are being processed")
COMPLETE = Summary("Succeeded", "100 rows written", complete=True)
FAILED = Summary("ErrorThreshold", "3 % of the rows failed", failed=True)
SUSPENDED = Summary("Suspended", "suspend is set", suspended=True)
NOON, LATER, LAST = "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z", "2026-03-01T14:00:00Z"


@pytest.mark.parametrize(
    ("summary", "about"),
    [
        (ACTIVE, {"Ready", "Reconciling"}),
        (COMPLETE, {"Ready", "Complete"}),
        (FAILED, {"Ready", "Failed", "Stalled"}),
        (SUSPENDED, {"Ready", "Suspended"}),
    ],
    ids=["active", "complete", "failed", "suspended"],
)
def test_each_condition_has_a_reason_and_a_message_about_itself(
    summary: Summary, about: set[str]
) -> None:
    other = {
        "Complete": ("NotComplete", "the output is not complete"),
        "Failed": ("NotFailed", "the job has not failed"),
        "Suspended": ("NotSuspended", "the job is not suspended"),
    }
    for condition in build_conditions(summary, [], 7, NOON):
        of_job = condition["type"] in about
        expected = (summary.reason, summary.message) if of_job else other[condition["type"]]
        assert (condition["reason"], condition["message"]) == expected
        assert condition["observedGeneration"] == 7


@pytest.mark.parametrize("length", [0, 1, MAX_MESSAGE - 1, MAX_MESSAGE, MAX_MESSAGE + 1, 20_000])
def test_messages_are_truncated_to_the_limit_of_the_api_server(length: int) -> None:
    message = "x" * length
    expected = message if length <= MAX_MESSAGE else "x" * (MAX_MESSAGE - 3) + "..."
    assert truncate_message(message) == expected
    conditions = build_conditions(Summary("Application", message, failed=True), [], 1, NOON)
    about_it = [one for one in conditions if one["type"] in ("Ready", "Failed", "Stalled")]
    assert [one["message"] for one in about_it] == [expected] * 3


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
def test_condition_holds_only_with_status_true(status: dict[str, Any], expected: bool) -> None:
    assert is_condition_true(status, "Complete") is expected


VERDICTS = st.builds(
    lambda reason, message, end: Summary(
        reason, message, end == "complete", end == "failed", end == "suspended"
    ),
    st.from_regex(REASON, fullmatch=True),
    st.text(max_size=6_000),
    st.sampled_from(["active", "complete", "failed", "suspended"]),
)
TIMES = st.sampled_from([NOON, LATER])
PREVIOUS = st.one_of(
    st.builds(build_conditions, VERDICTS, st.just([]), st.integers(1, 9), TIMES),
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


@given(summary=VERDICTS, previous=PREVIOUS, generation=st.integers(1, 2**40))
@settings(max_examples=examples(200), deadline=None)
def test_conditions_of_any_verdict_follow_the_rules(
    summary: Summary, previous: list[dict[str, Any]], generation: int
) -> None:
    conditions = build_conditions(summary, previous, generation, LAST)
    by_type = {condition["type"]: condition for condition in conditions}
    assert len(by_type) == len(conditions) <= 8
    assert {"Ready", "Complete", "Failed", "Suspended"} <= set(by_type)
    for abnormal in ("Reconciling", "Stalled"):
        assert by_type.get(abnormal, {"status": "True"})["status"] == "True"
    ends = {"Complete": "Current", "Failed": "Failed", "Suspended": "Current"}
    true = [kind for kind in ends if by_type[kind]["status"] == "True"]
    body = {"metadata": {"generation": generation}, "status": {"conditions": conditions}}
    assert kstatus(body) == (ends[true[0]] if true else "InProgress")
    assert true == [
        *["Complete"] * summary.complete,
        *["Failed"] * summary.failed,
        *["Suspended"] * summary.suspended,
    ]
    for condition in conditions:
        Condition.model_validate(condition)


@given(summary=VERDICTS, previous=PREVIOUS)
@settings(max_examples=examples(200), deadline=None)
def test_transition_times_follow_any_previous_status(
    summary: Summary, previous: list[dict[str, Any]]
) -> None:
    before = {condition["type"]: condition for condition in previous}
    for condition in build_conditions(summary, previous, 1, LAST):
        old = before.get(condition["type"])
        same = old is not None and old["status"] == condition["status"]
        assert condition["lastTransitionTime"] == (old["lastTransitionTime"] if same else LAST)
