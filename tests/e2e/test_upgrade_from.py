"""An upgrade from an older chart with jobs in each phase. `make upgrade` builds what it needs.

OLDER_CHART is the chart's directory, and OLDER_TAG the tag of its images.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.jobs import GATED, PAUSED, SLOT, counts
from support.cluster.deployment import (
    NAMESPACE,
    PIPELINE_IMAGE,
    REGISTRY,
    VALUES,
    install,
    require_cluster,
    uninstall,
)
from support.cluster.kubectl import Kubectl, run
from support.cluster.object_store import ObjectStore
from support.cluster.state import REPLICAS
from support.cluster.statuses import WatchingKubectl
from support.cluster.waits import (
    JOB_END,
    outcomes,
    ray_jobs_created,
    suspend,
    wait_for_phase,
    wait_for_rows,
)
from support.engines import missing

pytestmark = [pytest.mark.long("upgrade"), pytest.mark.timeout(580)]
Job = dict[str, Any]


@pytest.fixture(scope="session")
def installation() -> Iterator[ObjectStore]:
    """Install the older chart, and yield the object store."""
    require_cluster()
    chart, tag = os.environ.get("OLDER_CHART"), os.environ.get("OLDER_TAG")
    if not (chart and tag):
        missing("OLDER_CHART", "run `make upgrade`")
    image = f"{REGISTRY}/batchinference/pipeline:{tag}"
    values = {"image": {**VALUES["image"], "tag": tag},
              "defaults": {**VALUES["defaults"], "image": image}}  # fmt: skip
    install(values, Path(chart))
    store = ObjectStore(Kubectl(f"e2e-store-{uuid.uuid4().hex[:6]}"))
    run(["kubectl", "create", "namespace", store.kubectl.namespace])
    store.start(PIPELINE_IMAGE)
    yield store
    run(["kubectl", "delete", "namespace", store.kubectl.namespace, "--wait=false"])
    uninstall()


def test_upgrade_keeps_jobs_in_each_phase(
    *,
    kubectl: WatchingKubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    open_slot: Callable[[], None],
    create: Callable[[Job], str],
    tmp_path: Path,
) -> None:
    (tmp_path / "lines.txt").write_text("".join(f"line {n}\n" for n in range(GATED)))
    late = slow_job("retried")
    late["spec"]["read"]["paths"] = [store.uri("late")]
    late["spec"]["retry"] = {"backoff": {"initial": "45s"}, "onCause": {"BadInput": "Retry"}}
    pended = slow_job("pending")
    pended["spec"]["cluster"] |= {"nodeSelector": {SLOT: "open"}}
    done, job = slow_job("complete"), slow_job("running")
    halted = slow_job("suspended", rows=PAUSED)

    open_gate(done)
    complete, suspended = create(done), create(halted)
    wait_for_rows(kubectl, suspended)
    kubectl.wait_complete(complete, JOB_END)
    suspend(kubectl, suspended, True)
    wait_for_phase(kubectl, suspended, "Suspended")
    running, pending = create(job), create(pended)
    wait_for_rows(kubectl, running)
    wait_for_phase(kubectl, pending, "Pending")
    retried = create(late)
    wait_for_phase(kubectl, retried, "Retrying")
    ended = kubectl.status(complete)

    install({})
    open_slot()
    store.upload(tmp_path, "late")
    for gated in (job, pended, late, halted):
        open_gate(gated)
    suspend(kubectl, suspended, False)
    statuses = {name: kubectl.wait_complete(name, JOB_END) for name in (running, pending, retried)}
    failed = wait_for_phase(kubectl, suspended, "Failed")

    print(json.dumps([statuses, failed], indent=1))
    assert {name: outcomes(status) for name, status in statuses.items()} == {
        running: ["Succeeded"], pending: ["Succeeded"], retried: ["Failed", "Succeeded"]
    }  # fmt: skip
    assert statuses[retried]["counts"] == counts(GATED)
    assert kubectl.status(complete) == with_present_counts(ended)
    assert ray_jobs_created(kubectl, complete, suspended, running, pending, retried) == [
        f"{complete}-1", f"{suspended}-1", f"{suspended}-2", f"{running}-1", f"{pending}-1",
        f"{retried}-1", f"{retried}-2"
    ]  # fmt: skip
    assert errors() == []


def with_present_counts(status: dict[str, Any]) -> dict[str, Any]:
    """Return a status of an ended job of the older version, as the newer CRD shows it. The older
    field `counts.skipped` is now `counts.filtered`, which has a default."""
    counts = {name: count for name, count in status["counts"].items() if name != "skipped"}
    return status | {"counts": counts | {"filtered": 0}}


def errors() -> list[str]:
    """Return the lines of the replicas' logs that are errors, or that no logger has written."""
    log = Kubectl(NAMESPACE)("logs", f"--selector={REPLICAS}", "--tail=-1")
    return [line for line in log.splitlines() if not _NO_ERROR.search(line)]


_NO_ERROR = re.compile(r'"level": "(debug|info|warning)"')
