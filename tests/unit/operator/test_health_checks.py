"""The health checks of docs/gitops.md see in a job of each phase what the page says."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from lupa.lua51 import LuaRuntime

from batchinference.spec.phases import Phase
from batchinference_operator.status.conditions import Verdict
from batchinference_operator.status.status import Finding, build_status
from support.documents.pages import ROOT, blocks
from support.operator.kstatus import kstatus

Object = dict[str, Any]
NOON = "2026-03-01T12:00:00Z"
WORDS = 'the words, with "quotes"'
PAGE = "docs/gitops.md"
AT_REST = {
    Phase.SUCCEEDED: ("Current", "Healthy"),
    Phase.FAILED: ("Failed", "Degraded"),
    Phase.SUSPENDED: ("Current", "Suspended"),
}


def job(phase: Phase, generation: int = 3) -> Object:
    """A job of this phase, whose third generation was observed."""
    verdict = Verdict(
        phase.value,
        WORDS,
        complete=phase == Phase.SUCCEEDED,
        failed=phase == Phase.FAILED,
        suspended=phase == Phase.SUSPENDED,
    )
    status = build_status({}, 3, Finding(phase, verdict), NOON)
    return {"metadata": {"name": "job", "generation": generation}, "status": status}


def argo_health(body: Object) -> tuple[str, str]:
    """Status and message by the script of the page, run as Argo CD runs it: by Lua 5.1."""
    (script,) = (
        found
        for block in blocks(PAGE, "yaml")
        for name, found in yaml.safe_load(block).items()
        if name == "resource.customizations.health.batchinference.dev_BatchInference"
    )
    lua = LuaRuntime()
    lua.globals().obj = lua.table_from(json.loads(json.dumps(body)), recursive=True)
    health = lua.execute(script)
    return health["status"], health["message"]


@pytest.mark.parametrize("phase", Phase)
def test_argo_cd_and_kstatus_see_how_it_goes(phase: Phase) -> None:
    of_kstatus, of_argo = AT_REST.get(phase, ("InProgress", "Progressing"))
    assert kstatus(job(phase)) == of_kstatus
    assert argo_health(job(phase)) == (of_argo, f"{phase}: {WORDS}")


@pytest.mark.parametrize("phase", Phase)
def test_a_change_that_was_not_seen_yet_is_on_its_way(phase: Phase) -> None:
    changed = job(phase, generation=4)
    assert kstatus(changed) == "InProgress"
    assert argo_health(changed)[0] == "Progressing"


def test_a_job_that_was_not_seen_yet_is_on_its_way() -> None:
    assert argo_health({"metadata": {"name": "job", "generation": 1}})[0] == "Progressing"


def test_the_page_tells_what_the_checks_say() -> None:
    text = (ROOT / PAGE).read_text()
    rows = {("InProgress", "Progressing"), *AT_REST.values()}
    for of_kstatus, of_argo in rows:
        assert f"| {of_kstatus} | {of_argo} |" in text
