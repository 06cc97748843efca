"""The health checks in docs/gitops.md give the documented health for a job in each phase."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from batchinference.spec.status import Phase
from batchinference_operator.status.conditions import Summary
from batchinference_operator.status.job_status import StatusUpdate, build_status
from support.documents.pages import ROOT, blocks
from support.operator.kstatus import kstatus

Object = dict[str, Any]
NOON = "2026-03-01T12:00:00Z"
MESSAGE = 'a message with "quotes"'
PAGE = "docs/gitops.md"
AT_REST = {
    Phase.SUCCEEDED: ("Current", "Healthy"),
    Phase.FAILED: ("Failed", "Degraded"),
    Phase.SUSPENDED: ("Current", "Suspended"),
}


def job(phase: Phase, generation: int = 3) -> Object:
    """Return a job in this phase with observedGeneration 3."""
    summary = Summary(
        phase.value,
        MESSAGE,
        complete=phase == Phase.SUCCEEDED,
        failed=phase == Phase.FAILED,
        suspended=phase == Phase.SUSPENDED,
    )
    status = build_status({}, 3, StatusUpdate(phase, summary), NOON)
    return {"metadata": {"name": "job", "generation": generation}, "status": status}


def argo_health(body: Object) -> tuple[str, str]:
    """Return status and message from the script in the page, run in Lua 5.1 as in Argo CD."""
    (script,) = (
        result
        for block in blocks(PAGE, "yaml")
        for name, result in yaml.safe_load(block).items()
        if name == "resource.customizations.health.batchinference.dev_BatchInference"
    )
    lua = LuaRuntime()
    lua.globals().obj = lua.table_from(json.loads(json.dumps(body)), recursive=True)
    health = lua.execute(script)
    return health["status"], health["message"]


@pytest.mark.parametrize("phase", Phase)
def test_argo_cd_and_kstatus_see_the_phase(phase: Phase) -> None:
    of_kstatus, of_argo = AT_REST.get(phase, ("InProgress", "Progressing"))
    assert kstatus(job(phase)) == of_kstatus
    assert argo_health(job(phase)) == (of_argo, f"{phase}: {MESSAGE}")
    changed = job(phase, generation=4)
    assert kstatus(changed) == "InProgress"
    assert argo_health(changed)[0] == "Progressing"


def test_job_without_status_is_progressing() -> None:
    assert argo_health({"metadata": {"name": "job", "generation": 1}})[0] == "Progressing"


def test_page_lists_the_results_of_the_checks() -> None:
    text = (ROOT / PAGE).read_text()
    rows = {("InProgress", "Progressing"), *AT_REST.values()}
    assert [row for row in rows if f"| {row[0]} | {row[1]} |" not in text] == []
