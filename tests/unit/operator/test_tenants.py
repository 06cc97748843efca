"""The operator refuses each attempt of a tenant to get more than the platform allows."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.cluster import Cluster
from batchinference_operator.reconcile.attempt_objects import create_actions
from batchinference_operator.reconcile.job_view import JobView
from batchinference_operator.reconcile.owned import next_names
from support.documents.attempts import ATTEMPTS, OPERATOR, Attempt
from support.operator.objects import CONFIG, CREATED, job_body


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
def test_attempt_is_refused_by_a_message_that_names_the_rule(attempt: Attempt) -> None:
    values = attempt.chart_values
    config = replace(
        CONFIG,
        policy=PlatformPolicy.model_validate(values["policy"]),
        defaults=Cluster.model_validate({"image": "own:1", **values["defaults"]}),
        own_namespace=OPERATOR,
    )
    body = job_body(namespace=attempt.namespace)
    job = JobView.of({**body, "spec": {**body["spec"], **attempt.spec}})
    actions = create_actions(job, next_names(job), config, datetime.fromisoformat(CREATED))
    assert actions.create == ()
    (ready,) = (one for one in actions.status["conditions"] if one["type"] == "Ready")
    assert (ready["reason"], ready["message"]) == ("InvalidSpec", attempt.message)
