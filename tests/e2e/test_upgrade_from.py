"""The upgrade from a chart with v1alpha1, as docs/upgrades.md describes it. `make upgrade` builds
what it needs.

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
import yaml

from e2e.jobs import GATED, PAUSED, counts
from support.cluster.deployment import (
    NAMESPACE,
    PIPELINE_IMAGE,
    REGISTRY,
    ROOT,
    VALUES,
    install,
    require_cluster,
    uninstall,
)
from support.cluster.kubectl import Kubectl, run
from support.cluster.object_store import ObjectStore, starts
from support.cluster.state import REPLICAS
from support.cluster.statuses import WatchingKubectl
from support.cluster.waits import JOB_END, suspend, wait_for_phase, wait_for_rows
from support.documents.minimal import schedule_document
from support.documents.v1alpha1 import as_v1alpha1, converted
from support.engines import missing, program
from support.timeouts import scaled

pytestmark = [pytest.mark.long("upgrade"), pytest.mark.timeout(580)]
Job = dict[str, Any]
DEFINITIONS = [
    f"{kind}.batchinference.dev" for kind in ("batchinferences", "batchinferenceschedules")
]


@pytest.fixture(scope="session")
def installation() -> Iterator[ObjectStore]:
    """Install the older chart, and yield the object store."""
    require_cluster()
    program("jq", "https://jqlang.org/download/")
    chart, tag = os.environ.get("OLDER_CHART"), os.environ.get("OLDER_TAG")
    if not (chart and tag):
        missing("OLDER_CHART", "run `make upgrade`")
    # Helm keeps the definitions of an earlier release, which do not have v1alpha1
    run(["kubectl", "delete", "crd", "--ignore-not-found", *DEFINITIONS])
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


def test_jobs_of_v1alpha1_are_converted_and_continue(
    *,
    kubectl: WatchingKubectl,
    store: ObjectStore,
    slow_job: Callable[..., Job],
    open_gate: Callable[[Job], None],
    create: Callable[[Job], str],
    tmp_path: Path,
) -> None:
    export, delete = _commands()
    done, halted = slow_job("complete"), slow_job("suspended", rows=PAUSED)
    schedule = schedule_document("yearly", "0 0 1 1 *", suspend=True, startingDeadlineSeconds=7200)
    kubectl.apply(schedule | {"apiVersion": "batchinference.dev/v1alpha1"})
    open_gate(done)
    complete, suspended = create(as_v1alpha1(done)), create(as_v1alpha1(halted))
    wait_for_rows(kubectl, suspended)
    kubectl.wait_complete(complete, JOB_END)
    suspend(kubectl, suspended, True)
    wait_for_phase(kubectl, suspended, "Suspended")

    run(["bash", "-ec", f"cd {tmp_path}\n{export}"])
    exported = list(yaml.safe_load_all((tmp_path / "jobs.yaml").read_text()))
    run(["bash", "-ec", delete], timeout=scaled(240))
    kubectl.history.clear()
    install({})
    kubectl.apply(*map(converted, exported))
    suspend(kubectl, suspended, False)
    open_gate(halted)
    status = kubectl.wait_complete(suspended, JOB_END)
    again = kubectl.wait_complete(complete, JOB_END)

    print(json.dumps([status, again], indent=1))
    assert {document["metadata"]["name"] for document in exported} == {
        complete, suspended, "yearly"
    }  # fmt: skip
    assert status["counts"] == counts(PAUSED)
    assert starts(store, halted["spec"]["write"]["path"])[-1] > 0
    assert again["counts"] == counts(GATED)
    assert starts(store, done["spec"]["write"]["path"]) == [0]
    yearly = kubectl.get("batchinferenceschedule", "yearly") or {}
    assert yearly["spec"]["startingDeadline"] == "2h"
    assert errors() == []


def _commands() -> list[str]:
    """Return the commands of docs/upgrades.md that export and delete the objects."""
    page = (ROOT / "docs" / "upgrades.md").read_text()
    section = page.partition("## From v1alpha1 to v1beta1")[2].partition("\n## ")[0]
    return re.findall(r"```bash\n(.*?)```", section, re.DOTALL)


def errors() -> list[str]:
    """Return the lines of the replicas' logs that are errors, or that no logger has written."""
    log = Kubectl(NAMESPACE)("logs", f"--selector={REPLICAS}", "--tail=-1")
    return [line for line in log.splitlines() if not _NO_ERROR.search(line)]


_NO_ERROR = re.compile(r'"level": "(debug|info|warning)"')
