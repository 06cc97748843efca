"""Invariants of every RayJob, independent of the golden files."""

from __future__ import annotations

import shlex
from importlib.metadata import version

import pytest

from batchinference.plan import parse_plan, plan_for_cluster
from batchinference.rendering import ATTEMPT_LABEL
from batchinference.rendering.config_map import (
    DIGEST_VARIABLES,
    JOB_DIRECTORY,
    JOB_FILE,
    PLAN_FILE,
    check_mounted_file,
)
from batchinference.rendering.rayjob import MAX_SECONDS, entrypoint
from batchinference.spec import SpecError, parse_one
from batchinference.spec.cluster import Cluster
from batchinference.spec.quantities import cpus_of
from plugins.messages import Messages
from support.documents.minimal import python_step
from support.documents.parsed import job
from support.operator.rendered import TOKEN, UID, Rendered, render

MAX_RAY_JOB_NAME = 47
"""KubeRay refuses a RayJob with a longer name."""
LONGEST = "a" + "-b" * 19 + "c"


@pytest.mark.parametrize(("ttl", "seconds"), [("5m", 600), ("1h", 3600), ("999999d", MAX_SECONDS)])
def test_cluster_ttl_can_be_extended(ttl: str, seconds: int) -> None:
    made = render(job(cluster={"image": "x"}, ttl={"cluster": ttl}))
    assert made.ray_job["spec"]["ttlSecondsAfterFinished"] == seconds


def test_ray_version_and_autoscaler_version(rendered: Rendered) -> None:
    assert rendered.cluster["rayVersion"] == version("ray")
    assert rendered.cluster["enableInTreeAutoscaling"] is True
    assert rendered.cluster["autoscalerOptions"]["version"] == "v2"


def test_worker_groups_equal_the_plan(rendered: Rendered) -> None:
    planned = {group.name: group for group in plan_for_cluster(rendered.job.spec).groups}
    assert rendered.workers.keys() == planned.keys()
    for name, group in planned.items():
        made = rendered.workers[name]
        bounds = (made["replicas"], made["minReplicas"], made["maxReplicas"])
        assert bounds == (group.min, group.min, group.max), "KubeRay waits for all `replicas`"
        assert group.cpus <= int(made["rayStartParams"]["num-cpus"]) < group.cpus + 1
        assert made["rayStartParams"].get("num-gpus", "0") == str(group.gpus)
        limits = made["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert (cpus_of(limits["cpu"]), limits["memory"]) == (group.cpus, group.memory)


def test_token_is_required_and_only_in_the_secret(rendered: Rendered) -> None:
    secret = rendered.secret["metadata"]["name"]
    assert rendered.cluster["authOptions"] == {"mode": "token", "secretName": secret}
    assert rendered.secret["stringData"] == {"auth_token": TOKEN}
    assert TOKEN not in repr([rendered.config_map, rendered.ray_job])


def test_driver_runs_the_job_file_mounted_in_the_head(rendered: Rendered) -> None:
    command = shlex.split(rendered.ray_job["spec"]["entrypoint"])
    assert command[:2] == ["batchinference", "run"]
    pod = rendered.head["template"]["spec"]
    mounts = pod["containers"][0]["volumeMounts"]
    (name,) = [m["name"] for m in mounts if command[-1] == f"{m['mountPath']}/{JOB_FILE}"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[name]["configMap"]["name"] == rendered.config_map["metadata"]["name"]
    assert JOB_FILE in rendered.config_map["data"]


def test_entrypoint_does_not_depend_on_the_job() -> None:
    odd = python_step()
    odd["python"]["constructorArgs"] = {"text": "$(reboot); `reboot` 'x\" && y"}
    assert render(job(steps=[odd])).ray_job["spec"]["entrypoint"] == entrypoint()


def test_object_names_of_the_longest_job_name_are_valid() -> None:
    assert len(LONGEST) == 40
    made = render(job(LONGEST), attempt=999_999)
    names = [one["metadata"]["name"] for one in made.objects]
    assert len(made.ray_job["metadata"]["name"]) <= MAX_RAY_JOB_NAME
    assert all(len(name) <= 63 for name in names)
    assert all(len(value) <= 63 for value in made.ray_job["metadata"]["labels"].values())


def test_each_attempt_has_its_own_immutable_config_map() -> None:
    """The spec may change after the ConfigMap was created and before the RayJob is."""
    jobs = (job("j"), 1), (job("j"), 2), (job("j", errors={"maxRows": 3}), 2)
    attempts = [render(one, attempt=number) for one, number in jobs]
    names = [one.config_map["metadata"]["name"] for one in attempts]
    assert [one.ray_job["metadata"]["name"] for one in attempts] == ["j-1", "j-2", "j-2"]
    assert attempts[0].secret["metadata"]["name"] != attempts[1].secret["metadata"]["name"]
    assert attempts[1].pods[0]["metadata"]["labels"][ATTEMPT_LABEL] == "2"
    assert [name.rpartition("-")[0] for name in names] == [f"j-{UID[:8]}-{n}" for n in (1, 2, 2)]
    assert len(set(names)) == 3
    for name, one in zip(names, attempts, strict=True):
        assert one.config_map["immutable"] is True
        assert f"'name': '{name}'" in repr(one.pods[0])


def test_the_config_map_holds_the_plan_of_the_ray_job(rendered: Rendered) -> None:
    files, spec = rendered.config_map["data"], rendered.job.spec
    stored = parse_plan(files[PLAN_FILE])
    assert stored == plan_for_cluster(parse_one(files[JOB_FILE]).spec)
    assert stored.groups == plan_for_cluster(spec).groups


@pytest.mark.parametrize("name", [JOB_FILE, PLAN_FILE])
def test_the_head_has_the_digests_of_its_files(
    rendered: Rendered, name: str, messages: Messages
) -> None:
    """The driver refuses other files, which a user who can write only ConfigMaps may have put."""
    head, *workers = rendered.containers
    values = {variable["name"]: variable.get("value") or "" for variable in head["env"]}
    path, file, env = f"{JOB_DIRECTORY}/{name}", rendered.config_map["data"][name], dict(values)
    check_mounted_file(path, file, env)
    assert all(DIGEST_VARIABLES[name] not in repr(worker) for worker in workers)
    with messages.raises(SpecError):
        check_mounted_file(path, file + "#", env)
    check_mounted_file(f"own/{name}", file + "#", env)


def test_job_without_an_image_is_not_rendered(messages: Messages) -> None:
    with messages.raises(SpecError):
        render(job(), Cluster())


def test_rendering_changes_neither_the_job_nor_the_defaults(rendered: Rendered) -> None:
    given = {"image": "i", "tolerations": [{"key": "k", "value": "v"}], "workers": {"max": 30}}
    platform = Cluster.model_validate(given)
    before = rendered.job.model_copy(deep=True), platform.model_copy(deep=True)
    assert render(rendered.job, platform).objects == render(rendered.job, platform).objects
    assert (rendered.job, platform) == before
