"""What must hold of every RayJob, whatever the golden files say."""

from __future__ import annotations

import shlex
from importlib.metadata import version

import pytest

from batchinference.plan import plan_for_cluster
from batchinference.plan.groups import GROUP_LABEL, HEAD_GROUP
from batchinference.rendering import ATTEMPT_LABEL
from batchinference.rendering.objects import JOB_FILE
from batchinference.rendering.rayjob import entrypoint
from batchinference.spec import SpecError
from batchinference.spec.cluster import Cluster
from support.documents.minimal import model_step, python_step
from support.documents.parsed import job
from support.operator.rendered import RAY_JOB_UID, TOKEN, UID, Object, Rendered, render

MAX_RAY_JOB_NAME = 47
"""KubeRay takes no RayJob with a longer name."""
LONGEST = "a" + "-b" * 19 + "c"


def test_the_driver_is_submitted_once_and_over_http(rendered: Rendered) -> None:
    spec = rendered.ray_job["spec"]
    assert spec["submissionMode"] == "HTTPMode"
    assert spec["backoffLimit"] == 0
    assert "submitterPodTemplate" not in spec
    assert "submitterConfig" not in spec


def test_finished_cluster_has_a_ttl(rendered: Rendered) -> None:
    spec = rendered.ray_job["spec"]
    assert spec["shutdownAfterJobFinishes"] is True
    assert 60 <= spec["ttlSecondsAfterFinished"] <= 3600
    assert "deletionStrategy" not in spec


@pytest.mark.parametrize(("ttl", "seconds"), [("5m", 600), ("1h", 3600)])
def test_ttl_of_a_cluster_can_be_extended(ttl: str, seconds: int) -> None:
    made = render(job(cluster={"image": "x"}, ttl={"cluster": ttl}))
    assert made.ray_job["spec"]["ttlSecondsAfterFinished"] == seconds


def test_ray_version_equals_the_tested_one(rendered: Rendered) -> None:
    assert rendered.cluster["rayVersion"] == version("ray")


def test_rays_own_autoscaler_of_the_second_version_scales_the_cluster(rendered: Rendered) -> None:
    assert rendered.cluster["enableInTreeAutoscaling"] is True
    assert rendered.cluster["autoscalerOptions"]["version"] == "v2"


def test_kuberay_waits_only_for_minimum_workers(
    rendered: Rendered,
) -> None:
    """It submits the job when all of `replicas` are there, and GPUs may be long in coming."""
    for name, group in rendered.workers.items():
        assert group["replicas"] == group["minReplicas"] <= group["maxReplicas"]
        assert name == "cpu" or group["replicas"] == 0


def test_no_work_runs_on_the_head(rendered: Rendered) -> None:
    assert rendered.head["rayStartParams"]["num-cpus"] == "0"


def test_worker_groups_have_a_ray_resource_of_their_name(rendered: Rendered) -> None:
    for name, group in rendered.workers.items():
        assert group["labels"] == {GROUP_LABEL: name}


def test_the_head_tells_the_driver_that_this_cluster_scales(rendered: Rendered) -> None:
    assert rendered.head["labels"] == {GROUP_LABEL: HEAD_GROUP}
    assert HEAD_GROUP not in rendered.workers


def test_ray_resources_are_set_once(rendered: Rendered) -> None:
    """KubeRay takes either the start parameters or `resources`, and labels only as such."""
    for group in rendered.workers.values():
        assert "resources" not in group
        assert group["rayStartParams"].keys() <= {"num-cpus", "num-gpus", "resources"}


def test_ray_counts_at_least_the_cpus_that_the_plan_counts(rendered: Rendered) -> None:
    for group in plan_for_cluster(rendered.job.spec).groups:
        counted = int(rendered.workers[group.name]["rayStartParams"]["num-cpus"])
        assert group.cpus <= counted < group.cpus + 1


def test_ray_counts_the_gpus_that_the_plan_counts(rendered: Rendered) -> None:
    for group in plan_for_cluster(rendered.job.spec).groups:
        counted = rendered.workers[group.name]["rayStartParams"].get("num-gpus", "0")
        assert counted == str(group.gpus)


def test_there_is_a_worker_group_for_each_group_of_the_plan(rendered: Rendered) -> None:
    planned = {
        group.name: (group.min, group.max) for group in plan_for_cluster(rendered.job.spec).groups
    }
    made = rendered.workers.items()
    assert {name: (one["minReplicas"], one["maxReplicas"]) for name, one in made} == planned


def test_rays_processes_and_ours_need_a_token(rendered: Rendered) -> None:
    secret = rendered.secret["metadata"]["name"]
    assert rendered.cluster["authOptions"] == {"mode": "token", "secretName": secret}
    assert rendered.secret["stringData"] == {"auth_token": TOKEN}


def test_token_is_only_in_the_secret(rendered: Rendered) -> None:
    assert TOKEN not in repr([rendered.config_map, rendered.ray_job])


def test_the_driver_runs_the_file_that_is_mounted_in_the_head(rendered: Rendered) -> None:
    command = shlex.split(rendered.ray_job["spec"]["entrypoint"])
    assert command[:2] == ["batchinference", "run"]
    (mount,) = [
        mount
        for mount in rendered.head["template"]["spec"]["containers"][0]["volumeMounts"]
        if command[-1] == f"{mount['mountPath']}/{JOB_FILE}"
    ]
    volumes = {volume["name"]: volume for volume in rendered.head["template"]["spec"]["volumes"]}
    assert volumes[mount["name"]]["configMap"]["name"] == rendered.config_map["metadata"]["name"]
    assert JOB_FILE in rendered.config_map["data"]


def test_entrypoint_is_constant() -> None:
    odd = python_step()
    odd["python"]["constructorArgs"] = {"text": "$(reboot); `reboot` 'x\" && y"}
    assert render(job(steps=[odd])).ray_job["spec"]["entrypoint"] == entrypoint()


def controlled_by(api_version: str, kind: str, name: str, uid: str) -> Object:
    """Metadata of an object that Kubernetes deletes with its owner."""
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    return {"ownerReferences": [{**reference, "controller": True}]}


def test_config_map_and_ray_job_are_owned_by_the_job(rendered: Rendered) -> None:
    name = rendered.job.metadata.name
    owned = controlled_by("batchinference.dev/v1alpha1", "BatchInference", name, UID)
    for one in (rendered.config_map, rendered.ray_job):
        assert owned.items() <= one["metadata"].items()


def test_secret_is_owned_by_the_ray_job(rendered: Rendered) -> None:
    name = rendered.ray_job["metadata"]["name"]
    owned = controlled_by("ray.io/v1", "RayJob", name, RAY_JOB_UID)
    assert owned.items() <= rendered.secret["metadata"].items()


def test_objects_without_owner_have_no_references(rendered: Rendered) -> None:
    for one in render(rendered.job, owned=False).objects:
        assert "ownerReferences" not in one["metadata"]


def test_the_objects_lie_in_the_namespace_of_the_job(rendered: Rendered) -> None:
    for one in rendered.objects:
        assert one["metadata"].get("namespace") == rendered.job.metadata.namespace


def test_objects_and_pods_have_the_operator_labels(
    rendered: Rendered,
) -> None:
    labels = {
        "app.kubernetes.io/managed-by": "batchinference-operator",
        "batchinference.dev/name": rendered.job.metadata.name,
    }
    for one in (*rendered.objects, *rendered.pods):
        assert labels.items() <= one["metadata"]["labels"].items()
    for one in (rendered.ray_job, *rendered.pods):
        assert one["metadata"]["labels"][ATTEMPT_LABEL] == "1"


def test_longest_job_name_gives_valid_object_names() -> None:
    assert len(LONGEST) == 40
    made = render(job(LONGEST), attempt=999_999)
    names = [one["metadata"]["name"] for one in made.objects]
    assert len(made.ray_job["metadata"]["name"]) <= MAX_RAY_JOB_NAME
    assert all(len(name) <= 63 for name in names)
    assert all(len(value) <= 63 for value in made.ray_job["metadata"]["labels"].values())


def test_each_attempt_has_its_own_ray_job_and_token() -> None:
    first, second = render(job("j"), attempt=1), render(job("j"), attempt=2)
    assert [one.ray_job["metadata"]["name"] for one in (first, second)] == ["j-1", "j-2"]
    assert first.secret["metadata"]["name"] != second.secret["metadata"]["name"]
    assert second.pods[0]["metadata"]["labels"][ATTEMPT_LABEL] == "2"


def test_recreated_job_has_other_object_names() -> None:
    made = render(job("j"))
    for one in (made.config_map, made.secret):
        assert UID[:8] in one["metadata"]["name"]
    assert made.config_map["metadata"]["name"] != made.secret["metadata"]["name"]


def test_no_job_is_rendered_without_an_image() -> None:
    with pytest.raises(SpecError) as refusal:
        render(job(), Cluster())
    assert str(refusal.value) == (
        "spec.cluster.image: no image: set spec.cluster.image, or a default in the operator's chart"
    )


def test_deadlocked_job_is_not_rendered() -> None:
    crowd = model_step(replicas={"min": 9, "max": 9})
    with pytest.raises(SpecError, match="would wait for ever"):
        render(job(steps=[crowd], cluster={"workers": {"cpu": 2, "max": 1}}))


def test_rendering_changes_neither_the_job_nor_the_defaults(rendered: Rendered) -> None:
    given = {"image": "i", "tolerations": [{"key": "k", "value": "v"}], "workers": {"max": 30}}
    platform = Cluster.model_validate(given)
    before = rendered.job.model_copy(deep=True), platform.model_copy(deep=True)
    assert render(rendered.job, platform).objects == render(rendered.job, platform).objects
    assert (rendered.job, platform) == before
