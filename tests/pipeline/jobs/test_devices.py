"""Ray assigns replicas the devices, memory and threads that their steps request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.plan import plan_for_machine
from batchinference.spec import parse
from plugins.messages import Messages
from support.jobs.command import Command
from support.jobs.on_ray import job_document, run_job, write_lines
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
    (found,) = {row["found"] for row in rows_of(directory / "out")}
    result: dict[str, Any] = json.loads(found)
    return result


def test_step_with_a_custom_resource_gets_its_device(tmp_path: Path) -> None:
    """It leaves all CPUs of the machine to the tasks that feed it."""
    found = granted(tmp_path, npus=2, custom={"NPU": 1}, memory="700Mi")
    assert found["resources"] == {"NPU": 1.0, "memory": MEMORY}
    assert found["npus"] in ("0", "1")


def test_replica_has_one_thread_for_each_cpu(tmp_path: Path) -> None:
    found = granted(tmp_path, cpu=2)
    assert found["resources"]["CPU"] == 2
    assert found["threads"] == [2, 2]
    assert found["npus"] is None


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
