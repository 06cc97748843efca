"""The parts of a spec that control a job, as the API server stores them."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.spec.lifecycle import Backoff, Deadlines, Retry
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.mutable_spec import MutableSpec


def mutable_spec(**spec: Any) -> MutableSpec:
    return MutableSpec.of(spec, PlatformDefaults())


def test_valid_parts_of_the_spec_are_used() -> None:
    spec = mutable_spec(suspend=True, retry={"maxAttempts": 5}, deadlines={"stall": "5m"})
    assert spec.suspend
    assert spec.retry == Retry.model_validate({"maxAttempts": 5})
    assert spec.deadlines == Deadlines.model_validate({"stall": "5m"})


@pytest.mark.parametrize(
    "invalid",
    [{"onCause": {"NodeLots": "Retry"}}, {"onCause": "retry"}, {"maxAttempt": 7},
     {"backoff": {"initial": "soon", "max": "1m"}}],
    ids=["unknown-cause", "no-map", "unknown-field", "nested-value"],
)  # fmt: skip
def test_invalid_field_is_ignored_and_the_others_apply(invalid: dict[str, Any]) -> None:
    retry = mutable_spec(retry={"maxAttempts": 5, **invalid}).retry
    assert (retry.max_attempts, retry.on_cause, retry.backoff) == (5, {}, Backoff())


@pytest.mark.parametrize("given", [None, {}, [], "often", 7], ids=str)
def test_part_of_a_wrong_type_is_ignored(given: Any) -> None:
    assert mutable_spec(retry=given).retry == Retry()
