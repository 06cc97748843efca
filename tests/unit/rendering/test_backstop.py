"""The deadlines in the RayJob, which KubeRay enforces while the operator is down."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering.rayjob import KubeRayDeadlines
from batchinference.spec.lifecycle import Deadlines, Ttl
from support.documents.parsed import job
from support.operator.rendered import render

HOUR = 3600
FIELDS = ("activeDeadlineSeconds", "preRunningDeadlineSeconds")


def rendered(deadlines: dict[str, str], **cluster: Any) -> tuple[int | None, int | None]:
    spec = render(job(cluster={"image": "x", **cluster}, deadlines=deadlines)).ray_job["spec"]
    assert not [name for name in FIELDS if name in spec and spec[name] is None]
    active, pre_running = (spec.get(name) for name in FIELDS)
    return active, pre_running


@pytest.mark.parametrize(
    ("deadlines", "active", "pre_running"),
    [
        ({}, None, None),
        ({"stall": "5m"}, None, None),
        ({"active": "8h"}, 9 * HOUR, None),
        ({"total": "24h"}, 25 * HOUR, None),
        ({"active": "8h", "total": "24h"}, 9 * HOUR, None),
        ({"active": "30h", "total": "24h"}, 25 * HOUR, None),
        ({"pending": "30m"}, None, 5400),
        ({"pending": "1s", "active": "1s"}, HOUR + 1, HOUR + 1),
        ({"active": "999999h", "pending": "999999h"}, None, None),
        ({"active": "999999h", "total": "1h"}, 2 * HOUR, None),
    ],
)
def test_ray_job_has_each_deadline_an_hour_later(
    deadlines: dict[str, str], active: int | None, pre_running: int | None
) -> None:
    assert rendered(deadlines) == (active, pre_running)


def test_ray_job_in_a_queue_has_the_total_deadline_alone() -> None:
    """Kueue may gate the pods after the RayJob has started. Then the other deadlines start over."""
    deadlines = {"pending": "30m", "active": "8h"}
    assert rendered(deadlines, queueName="gpu") == (None, None)
    assert rendered({**deadlines, "total": "24h"}, queueName="gpu") == (25 * HOUR, None)


def test_backstop_is_read_as_it_was_rendered() -> None:
    made = KubeRayDeadlines.of(Deadlines(active="8h"), Ttl(), queued=False, counting=True)
    assert KubeRayDeadlines.in_spec(made.fields) == made
    assert KubeRayDeadlines.in_spec({}) == KubeRayDeadlines(kept=0)
