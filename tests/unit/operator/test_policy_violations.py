"""The operator refuses each job that violates the policy of the platform."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.platform_defaults import PlatformDefaults
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.job_view import JobView
from support.documents.policy_violations import OPERATOR, VIOLATIONS, PolicyViolation
from support.operator.objects import CONFIG, CREATED, job_body


@pytest.mark.parametrize("violation", VIOLATIONS, ids=str)
def test_violation_is_refused_by_a_message_that_names_the_rule(violation: PolicyViolation) -> None:
    values = violation.chart_values
    config = replace(
        CONFIG,
        policy=PlatformPolicy.model_validate(values["policy"]),
        defaults=PlatformDefaults.model_validate({"image": "own:1", **values["defaults"]}),
        own_namespace=OPERATOR,
    )
    body = job_body(namespace=violation.namespace)
    job = JobView.of({**body, "spec": {**body["spec"], **violation.spec}})
    actions = create_actions(job, job.next_names, config, datetime.fromisoformat(CREATED))
    assert actions.create == ()
    (ready,) = (one for one in actions.status["conditions"] if one["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == ("InvalidSpec", violation.message)
