"""A schedule with `write.mode: append` on a real cluster: each run processes new files only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.cluster.kubectl import Kubectl, eventually
from support.cluster.object_store import ObjectStore
from support.cluster.waits import JOB_END
from support.documents.minimal import document, schedule_document

SCHEDULE, NAME = "batchinferenceschedule", "each-minute"
FILES = {"a": 30, "b": 20}
"""The lines of the file that arrives before each run."""


def status_of(kubectl: Kubectl) -> dict[str, Any]:
    status: dict[str, Any] = (kubectl.get(SCHEDULE, NAME) or {}).get("status", {})
    return status


def run_once(kubectl: Kubectl) -> str:
    """Resume the schedule until it has created one run, and return the name of the run."""
    before = status_of(kubectl).get("lastScheduleTime")

    def created() -> str:
        status = status_of(kubectl)
        return status["active"][0] if status.get("lastScheduleTime") != before else ""

    _suspend(kubectl, value=False)
    name = eventually("a run", created, 90)
    _suspend(kubectl, value=True)
    return name


def _suspend(kubectl: Kubectl, *, value: bool) -> None:
    patch = json.dumps({"spec": {"suspend": value}})
    kubectl("patch", SCHEDULE, NAME, "--type=merge", "--patch", patch)


@pytest.mark.timeout(900)
def test_runs_of_an_append_schedule_each_process_only_new_files(
    kubectl: Kubectl, store: ObjectStore, tmp_path: Path
) -> None:
    output = store.uri("scheduled/out")
    template = document(
        read={"format": "text", "paths": [store.uri("scheduled/in")]},
        write={"format": "parquet", "path": output, "mode": "append"},
    )["spec"]
    schedule = {"schedule": "* * * * *", "suspend": True, "template": {"spec": template}}
    kubectl.apply(schedule_document(NAME, **schedule))
    read, ignored = [], []
    for file, lines in FILES.items():
        (tmp_path / file).mkdir()
        text = "".join(f"{file} {number}\n" for number in range(lines))
        (tmp_path / file / f"{file}.txt").write_text(text)
        (tmp_path / file / "notes.pdf").write_text("no text file")
        store.upload(tmp_path / file, "scheduled/in")
        status = kubectl.wait_complete(run_once(kubectl), JOB_END)
        read.append(status["counts"]["read"])
        ignored += [(each["name"], each["count"]) for each in status["warnings"]]
    assert read == list(FILES.values())
    assert ignored == [("FilesIgnored", 1)] * len(FILES)
    runs = kubectl.list("batchinferences", f"batchinference.dev/schedule={NAME}")
    assert len(runs) == len(FILES)
    proof = store.verified(output)
    assert proof["result"] == "proven"
    assert [each["name"] for work in proof["jobs"] for each in work["warnings"]] == [
        "FilesIgnored" for _ in FILES
    ]
    eventually("no active run", lambda: status_of(kubectl)["active"] == [], 30)
    kubectl("delete", SCHEDULE, NAME)
    selector = f"batchinference.dev/schedule={NAME}"
    eventually("no runs", lambda: not kubectl.list("batchinferences", selector), 60)
