"""The commands for jobs on a cluster, with a real API server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from batchinference.api.jobs_on_cluster import JobHandle
from batchinference.api.kubernetes import Kubernetes
from batchinference.api.targets import Target
from batchinference.cli.watch import watch_status
from batchinference.rendering import CLUSTER_LABEL, NODE_TYPE_LABEL, POD_GROUP_LABEL
from support.documents.minimal import document, schedule_document
from support.program import Invoke, run_program
from support.servers.api_server import ApiServer, Namespace, Refused


@pytest.fixture
def invoke(
    server: ApiServer, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Invoke:
    """Return a function that runs a command in the namespace of the test."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "kubeconfig")))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **options: Any) -> Result:
        return run_program(*arguments, "-n", namespace.name, **options)

    return run


def submit(invoke: Invoke, *documents: Any, options: tuple[str, ...] = ()) -> Result:
    Path("job.yaml").write_text(yaml.safe_dump_all(documents))
    return invoke("submit", "job.yaml", *options)


def set_status(namespace: Namespace, name: str, phase: str, **fields: Any) -> None:
    """Write a status as the operator does."""
    ready = {"type": "Ready", "status": "False", "reason": phase, "message": f"it is {phase}"}
    ready |= {"lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}
    status = {"phase": phase, "observedGeneration": 1, "conditions": [ready], **fields}
    path = namespace.path("BatchInference", name)
    namespace.server.patch(f"{path}/status", {"status": status})


def test_submit_creates_the_jobs_and_schedules_of_a_file(
    invoke: Invoke, namespace: Namespace
) -> None:
    write = {"format": "parquet", "path": "s3://out/{{ params.day }}"}
    job = document("daily", parameters=[{"name": "day"}], write=write)
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}}
    done = submit(invoke, secret, job, schedule_document(), options=("--set", "day=monday"))
    assert (done.exit_code, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"batchinference/daily created in namespace {namespace.name} of http")
    assert second.startswith("batchinferenceschedule/nightly created")
    stored = namespace.server.get(namespace.path("BatchInference", "daily"))
    assert stored["spec"]["write"]["path"] == "s3://out/monday"
    assert stored["metadata"]["managedFields"][0]["manager"] == "batchinference"
    named = submit(invoke, job, options=("--set", "day=tuesday", "--name", "tuesday"))
    assert named.stdout.startswith("batchinference/tuesday created")
    set_status(namespace, "daily", "Running")
    job["spec"]["priority"] = 3
    again = submit(invoke, job, options=("--set", "day=monday"))
    assert again.stdout.startswith("batchinference/daily applied")


def test_submit_refuses_what_a_cluster_cannot_run(invoke: Invoke, namespace: Namespace) -> None:
    local = document(write={"format": "parquet", "path": "./out"})
    for refused, message in (
        (local, "spec.write.path: './out'"),
        (document(steps=[{"name": "a"}]), "spec.steps[0]"),
    ):
        done = submit(invoke, refused)
        assert (done.exit_code, done.stdout) == (2, "")
        assert f"job.yaml: {message}" in done.stderr
    assert namespace.server.get(namespace.path("BatchInference"))["items"] == []


def test_status_and_watch_show_a_job(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    assert "the operator has not seen the job yet" in invoke("status", "daily").stdout
    progress = {"rows": 30, "total": 60, "percent": 50, "rowsPerSecond": 2.5, "eta": "12s"}
    counts = {"read": 30, "written": 28, "failed": 2, "filtered": 0}
    figures = {"progress": progress, "stage": "embed", "counts": counts, "attempt": 2}
    set_status(namespace, "daily", "Running", **figures)
    shown = invoke("status", "daily").stdout
    for line in ("rows         30 of 60 (50 %)", "failed rows  2", "attempt      2",
                 "stage        embed",
                 "speed        2.5 rows/s, ETA 12s", "state        Running"):  # fmt: skip
        assert line in shown.splitlines()
    assert json.loads(invoke("status", "daily", "-o", "json").stdout)["phase"] == "Running"
    set_status(namespace, "daily", "Failed", progress=progress, stage=None)
    assert "speed" not in invoke("status", "daily").stdout, "the job has ended"
    watched = invoke("status", "daily", "--watch")
    assert watched.exit_code == 1
    assert watched.stdout == "Failed, 30 rows, 50 %, 2 failed, it is Failed\n"
    set_status(namespace, "daily", "Succeeded")
    assert invoke("status", "daily", "--watch").exit_code == 0


def add_worker(namespace: Namespace, name: str, group: str, *, attempt: int, ready: bool) -> None:
    """Create a worker pod of the job `daily`, as KubeRay does."""
    labels = {CLUSTER_LABEL: f"daily-{attempt}", NODE_TYPE_LABEL: "worker"}
    metadata = {"name": name, "labels": {**labels, POD_GROUP_LABEL: group}}
    spec = {"containers": [{"name": "ray", "image": "registry/pipeline:1"}]}
    namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    condition = {"type": "Ready", "status": str(ready)}
    namespace.patch_status("Pod", name, {"conditions": [condition]})


def test_status_and_watch_show_the_workers_of_the_running_attempt(
    invoke: Invoke, namespace: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    submit(invoke, document("daily"))
    set_status(namespace, "daily", "Running", attempt=2, rayClusterName="daily-2")
    add_worker(namespace, "a", "cpu", attempt=2, ready=True)
    add_worker(namespace, "b", "cpu", attempt=2, ready=False)
    add_worker(namespace, "c", "embed", attempt=2, ready=False)
    add_worker(namespace, "old", "cpu", attempt=1, ready=True)
    assert "workers  cpu 1/2 ready, embed 0/1 ready\n" in invoke("status", "daily").stdout
    target = Target("daily", namespace.name)
    assert watch_status(target, 1, lambda _: set_status(namespace, "daily", "Succeeded")) == 0
    assert capsys.readouterr().out.splitlines() == [
        "starting workers and models, 0 rows, workers cpu 1/2 ready + embed 0/1 ready, "
        "it is Running",
        "Succeeded, 0 rows, it is Succeeded",
    ]


def add_head(namespace: Namespace) -> None:
    """Create the head pod of the first attempt of the job `daily`, on no node."""
    labels = {CLUSTER_LABEL: "daily-1", NODE_TYPE_LABEL: "head"}
    spec = {"containers": [{"name": "ray", "image": "registry/pipeline:1"}]}
    metadata = {"name": "head", "labels": labels}
    namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    namespace.patch_status("Pod", "head", {"phase": "Running"})


def test_logs_of_a_running_job_say_why_they_cannot_be_read(
    invoke: Invoke, namespace: Namespace
) -> None:
    submit(invoke, document("daily"))
    set_status(namespace, "daily", "Starting", attempt=1, rayClusterName="daily-1")
    done = invoke("logs", "daily")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "logs: attempt 1 of job 'daily': its head pod is not running yet" in done.stderr
    add_head(namespace)
    done = invoke("logs", "daily")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "its log cannot be read: pod head does not have a host assigned" in done.stderr


def test_verbose_command_prints_requests(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    done = invoke("status", "daily", "-v")
    path = f"/apis/batchinference.dev/v1beta1/namespaces/{namespace.name}/batchinferences/daily"
    assert f"{path}: 200 in 0." in done.stderr
    assert done.stderr.startswith("GET https://127.0.0.1:")
    assert invoke("status", "daily", "-q").stderr == ""
    assert invoke("suspend", "daily", "-q").output == ""


def test_jobs_are_suspended_resumed_and_cancelled(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    path = namespace.path("BatchInference", "daily")
    for command, done, suspended in (("suspend", "suspended", True), ("resume", "resumed", False)):
        shown = invoke(command, "daily")
        assert shown.stdout == f"batchinference/daily {done} in namespace {namespace.name}\n"
        assert namespace.server.get(path)["spec"]["suspend"] is suspended
    assert invoke("cancel", "daily").exit_code == 0
    with pytest.raises(Refused):
        namespace.server.get(path)


def test_resume_starts_a_failed_job_again(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    path = namespace.path("BatchInference", "daily")
    namespace.server.patch(path, {"metadata": {"labels": {"team": "a"}}})
    first = namespace.server.get(path)
    set_status(namespace, "daily", "Failed")
    assert invoke("resume", "daily").exit_code == 0
    again = namespace.server.get(path)
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert "status" not in again
    assert again["metadata"]["labels"] == {"team": "a"}
    assert again["spec"] == {**first["spec"], "suspend": False}


def test_resume_waits_until_the_failed_job_is_gone(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    path = namespace.path("BatchInference", "daily")
    first = namespace.server.patch(path, {"metadata": {"finalizers": ["example.com/a"]}})

    def remove_finalizer(_: float) -> None:
        namespace.server.patch(path, {"metadata": {"finalizers": []}})

    Kubernetes(namespace.name).replace(first, remove_finalizer)
    again = namespace.server.get(path)
    assert again["metadata"]["uid"] != first["metadata"]["uid"]
    assert "deletionTimestamp" not in again["metadata"]
    assert list(Path().glob("daily*")) == []


def test_jobs_of_a_namespace_are_listed(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    set_status(namespace, "daily", "Running", progress={"rows": 3, "total": 6, "percent": 50})
    shown = invoke("list", "-n", namespace.name).stdout.splitlines()
    assert shown[0].split()[:3] == ["job", "state", "rows"]
    assert shown[1].split()[:2] == [f"{namespace.name}/daily", "starting"]
    (data,) = json.loads(invoke("list", "-n", namespace.name, "-o", "json").stdout)
    assert (data["state"], data["rows"], data["total"]) == ("Running", 3, 6)


def test_missing_job_is_reported_by_name(invoke: Invoke) -> None:
    for command in ("status", "suspend", "resume", "cancel", "errors"):
        done = invoke(command, "nowhere")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"{command}: ")
        assert '"nowhere" not found (404)' in done.stderr


def test_job_handle_waits_for_the_end(invoke: Invoke, namespace: Namespace) -> None:
    submit(invoke, document("daily"))
    handle = JobHandle("daily", Kubernetes(namespace.name))
    with pytest.raises(TimeoutError, match="job 'daily' is Pending after 0 s"):
        handle.wait(timeout=0)
    ended = handle.wait(sleep=lambda _: set_status(namespace, "daily", "Succeeded"))
    assert (ended.phase, ended.ended) == ("Succeeded", True)


def test_doctor_finds_the_resources_of_the_cluster(invoke: Invoke) -> None:
    result = json.loads(invoke("doctor", "-o", "json").stdout)
    results = {each["check"]: each for each in result}
    assert results["BatchInference resources"]["result"] == "ok"
    assert results["operator"]["advice"] == "Install the chart: docs/cluster-install.md"
    assert results["GPUs of nodes"]["found"] == "none on 0 node(s)"
    assert results["Python"]["result"] == "ok"
    assert (results["CRD version"]["result"], results["CRD version"]["advice"]) == ("ok", "")


def test_unreachable_cluster_is_reported(
    tmp_path: Path, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = server.kubeconfig(tmp_path / "kubeconfig")
    file.write_text(file.read_text().replace(server.url, "https://127.0.0.1:9"))
    monkeypatch.setenv("KUBECONFIG", str(file))
    done = run_program("status", "daily")
    assert done.exit_code == 2
    assert "status: https://127.0.0.1:9 does not answer" in done.stderr
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    done = run_program("status", "daily")
    assert (done.exit_code, "Set KUBECONFIG" in done.stderr) == (2, True)
