"""The parts of a spec by which a job is led, as they stand in the API server."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.lifecycle import Backoff, Deadlines, Retry
from batchinference.spec.limits import Limits
from batchinference_operator.reconcile.policies import Policies


def led(**spec: Any) -> Policies:
    return Policies.of(spec, Limits())


def test_what_a_spec_says_of_its_life_is_taken_over() -> None:
    policies = led(suspend=True, retry={"maxAttempts": 5}, deadlines={"stall": "5m"})
    assert policies.suspend
    assert policies.retry == Retry.model_validate({"maxAttempts": 5})
    assert policies.deadlines == Deadlines.model_validate({"stall": "5m"})


@pytest.mark.parametrize(
    "typo",
    [{"onCause": {"NodeLots": "retry"}}, {"onCause": "retry"}, {"maxAttempt": 7}],
    ids=["unknown-cause", "no-map", "unknown-field"],
)
def test_a_typo_costs_what_it_is_in_and_nothing_beside(typo: dict[str, Any]) -> None:
    retry = led(retry={"maxAttempts": 5, **typo}).retry
    assert (retry.max_attempts, retry.on_cause) == (5, {})


def test_so_does_one_further_down() -> None:
    retry = led(retry={"maxAttempts": 5, "backoff": {"initial": "soon", "max": "1m"}}).retry
    assert (retry.max_attempts, retry.backoff) == (5, Backoff())


@pytest.mark.parametrize("given", [None, {}, [], "often", 7], ids=str)
def test_what_is_no_part_at_all_is_as_if_it_were_not_there(given: Any) -> None:
    assert led(retry=given).retry == Retry()
