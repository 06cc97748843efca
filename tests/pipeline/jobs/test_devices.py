"""Ray assigns replicas the devices, memory and threads that their steps request. Several replicas
may share a device and a pod."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.plan import Plan, plan_for_machine
from batchinference.spec import BatchInference, parse
from batchinference.spec.steps import Replicas
from plugins.messages import Messages
from support.jobs.command import Command
from support.jobs.on_ray import Run, job_document, run_job, write_lines
from support.outputs.rows import rows_of

pytestmark = pytest.mark.usefixtures("ray")
LINES = [f"text {n}" for n in range(6)]
MEMORY = 700 << 20


def granted(directory: Path, npus: int = 0, **resources: Any) -> dict[str, Any]:
    """Run a class with these resources, and return what Ray assigns to its replica."""
    source = write_lines(directory / "in", {"a.txt": LINES})
    step = {
        "name": "own",
        "python": {"callable": "own_code:ReportResources"},
        "resources": resources,
    }
    job = parse(job_document("devices", source, directory / "out", steps=[step]))
    plan = plan_for_machine(job.spec, custom={"NPU": npus}, memory=2 * MEMORY)
    run = run_job(job, plan)
    assert (run.report.message, run.counts) == (None, (6, 6, 0, 0))
    (actual,) = {row["found"] for row in rows_of(directory / "out")}
    result: dict[str, Any] = json.loads(actual)
    return result


def test_step_with_a_custom_resource_gets_its_device(tmp_path: Path) -> None:
    """It leaves all CPUs of the machine to the tasks that feed it."""
    result = granted(tmp_path, npus=2, custom={"NPU": 1}, memory="700Mi")
    assert result["resources"] == {"NPU": 1.0, "memory": MEMORY}
    assert result["npus"] in ("0", "1")


def test_replica_has_one_thread_for_each_cpu(tmp_path: Path) -> None:
    result = granted(tmp_path, cpu=2)
    assert result["resources"]["CPU"] == 2
    assert result["threads"] == [2, 2]
    assert result["npus"] is None


@pytest.mark.long("remote")
def test_ray_cluster_without_labels_is_refused(tmp_path: Path, messages: Messages) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    source = write_lines(tmp_path / "in", {"a.txt": LINES})
    step = {"name": "own", "python": {"callable": "m:C"}, "resources": {"custom": {"NPU": 1}}}
    job = job_document("alone", source, tmp_path / "out", steps=[step])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    done = Command(["run", "--address", address, "job.yaml"], tmp_path).run()
    assert done.returncode == 1
    messages.check(done.stderr)
    assert not (tmp_path / "out").exists()


def sharing_job(directory: Path, lines: list[str], **fields: Any) -> BatchInference:
    """Return a job whose class notes each of its replicas in the folder `replicas`."""
    source = write_lines(directory / "in", {f"{n}.txt": lines[n::8] for n in range(8)})
    replicas = directory / "replicas"
    replicas.mkdir()
    arguments = {"directory": str(replicas)}
    step = {
        "name": "own",
        "python": {"callable": "own_code:Replica", "constructorArgs": arguments},
        **fields,
    }
    return parse(job_document("sharing", source, directory / "out", steps=[step]))


def with_replicas(plan: Plan, number: int) -> Plan:
    """Return the plan, in which so many replicas start before the first batch."""
    stages = [replace(stage, replicas=Replicas(min=number, max=number)) for stage in plan.stages]
    return replace(plan, stages=tuple(stages))


def run_on_one_gpu(job: BatchInference, directory: Path, number: int) -> tuple[Run, list[str]]:
    """Run a job, and return what its replicas have noted."""
    run = run_job(job, with_replicas(plan_for_machine(job.spec, gpus=1), number))
    assert run.report.message is None
    return run, [file.read_text() for file in (directory / "replicas").iterdir()]


def test_only_the_replica_that_crashes_is_started_again(tmp_path: Path) -> None:
    lines = ["crash once", *(f"text {n}" for n in range(39))]
    job = sharing_job(tmp_path, lines, resources={"gpu": 0.25}, replicas={"max": 4}, batchSize=1)
    run, replicas = run_on_one_gpu(job, tmp_path, 4)
    assert replicas == ["0.25 of 0"] * 5
    assert run.counts == (40, 40, 0, 0)


def test_replicas_per_device_are_measured_and_each_row_is_written_once(tmp_path: Path) -> None:
    """The class waits for something else than the device, so that two replicas are faster."""
    lines = [f"wait {n}" for n in range(400)]
    job = sharing_job(
        tmp_path,
        lines,
        resources={"gpu": 1},
        replicas={"max": 2},
        replicasPerDevice="auto",
        batchSize=1,
    )
    run = run_job(job, plan_for_machine(job.spec, gpus=1), measured_seconds=0.0)
    assert run.report.message is None
    assert run.report.replicas_per_device == {"own": 2}
    assert sorted(row["text"] for row in rows_of(tmp_path / "out")) == sorted(lines)
    shares = {file.read_text() for file in (tmp_path / "replicas").iterdir()}
    assert shares == {"1 of 0", "0.5 of 0"}
