"""Warm clusters, and the RayJobs that run in one."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchinference.rendering import (
    NAME_LABEL,
    RAY_API_VERSION,
    RAY_CLUSTER,
    WARM,
    Names,
    Owner,
    WarmStart,
    attempt_objects,
    effective,
    fingerprint_of,
    warm_cluster,
    warm_start,
    warm_token_secret,
)
from batchinference.rendering.config_map import DIGEST_VARIABLES, JOB_DIRECTORY, digest_of
from batchinference.rendering.pods import JOB_VOLUME
from batchinference.rendering.warm import FILES, MAX_PACKED, packed, unpacking_entrypoint
from batchinference.spec import BatchInference, parse, parse_one
from support.documents.minimal import document, model_step
from support.operator.rendered import PLATFORM, TOKEN, UID, render

Object = dict[str, Any]

HERE = Path(__file__).parent
HEADER = "# Written by `python -m pytest tests/unit/rendering --write-golden`; do not edit.\n"
OWNER = Owner("batch-inference-pool-any", "uid-of-pool", "ConfigMap", "v1")
NAME = "any-warm-0a1b2c3d"
SIZED = {"workers": {"cpu": 2, "max": 4}}
"""Otherwise the size and number of workers depends on the steps."""


def job(name: str = "job", **spec: Any) -> BatchInference:
    """Return a job with complete cluster settings."""
    return effective(parse(document(name, **spec)), PLATFORM)


def start(complete: BatchInference, attempt: int = 1) -> WarmStart | None:
    """Return how an attempt starts in a warm cluster of a pool for such jobs."""
    names = Names(complete.metadata.name, UID, attempt)
    objects = attempt_objects(complete, names, Owner(complete.metadata.name, UID), 1)
    return warm_start(complete, objects, frozenset({fingerprint_of(complete)}))


def ray_job(complete: BatchInference) -> Object:
    found = start(complete)
    assert found is not None
    return found.ray_job_in(NAME)


def test_rendered_objects_equal_the_golden_file(request: pytest.FixtureRequest) -> None:
    complete = effective(parse_one((HERE / "jobs/minimal.yaml").read_text()), PLATFORM)
    cluster = warm_cluster(complete, "any", NAME, fingerprint_of(complete), OWNER)
    owner = Owner(NAME, "uid-of-cluster", RAY_CLUSTER, RAY_API_VERSION)
    secret = warm_token_secret("team", NAME, TOKEN, owner)
    attempt = ray_job(complete)
    assert attempt["spec"].pop("rayClusterSpec") == cluster["spec"]
    attempt["spec"].pop("metadata")  # it has its own tests
    objects = [cluster, secret, attempt]
    golden = HERE / "golden/warm-cluster.yaml"
    if request.config.getoption("--write-golden", default=False):
        text = yaml.safe_dump_all(objects, sort_keys=False, default_flow_style=None, width=100)
        golden.write_text(HEADER + text)
    assert list(yaml.safe_load_all(golden.read_text())) == objects


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (job("a"), job("b")),
        (job(), job(priority=5, retry={"maxAttempts": 9}, ttl={"cluster": "1h"})),
        (job(), job(write={"format": "json", "path": "s3://elsewhere/"})),
        (job(), job(steps=[{"name": "most", "filter": "text != ''"}])),
        (job(cluster=SIZED), job(cluster=SIZED, steps=[model_step()])),
    ],
    ids=["name", "lifecycle", "output", "filter", "model-in-tasks"],
)
def test_jobs_that_start_the_same_cluster_fit(one: BatchInference, other: BatchInference) -> None:
    assert fingerprint_of(one) == fingerprint_of(other)


@pytest.mark.parametrize(
    "spec",
    [
        {"cluster": {"image": "registry.example/other:1"}},
        {"cluster": {"env": [{"name": "A", "value": "b"}]}},
        {"cluster": {"workers": {"memory": "9Gi"}}},
        {"cluster": {"serviceAccountName": "other"}},
        {"cluster": {"patches": [{"groups": ["*"], "pod": {"spec": {"hostname": "a"}}}]}},
        {"steps": [model_step(resources={"gpu": 1})]},
    ],
    ids=["image", "env", "memory", "account", "patch", "device"],
)
def test_jobs_that_start_another_cluster_do_not_fit(spec: Object) -> None:
    assert fingerprint_of(job(**spec)) != fingerprint_of(job())


def test_attempt_with_more_memory_does_not_fit() -> None:
    """The memory of the next attempt is part of its complete settings."""
    more = job(cluster={"workers": {"memory": "6Gi"}})
    objects = attempt_objects(more, Names("job", UID, 2), None)
    assert warm_start(more, objects, frozenset({fingerprint_of(job())})) is None


def test_job_in_a_queue_does_not_fit() -> None:
    """Kueue does not manage RayJobs that select a cluster."""
    assert start(job()) is not None
    assert start(job(cluster={"queue": "gpu"})) is None


@pytest.mark.parametrize(
    ("cluster", "fingerprints"),
    [({}, frozenset()), ({"queue": "gpu"}, frozenset({"of a pool"}))],
    ids=["no-pools", "queue"],
)
def test_cluster_is_rendered_again_only_if_it_may_fit(
    monkeypatch: pytest.MonkeyPatch, cluster: Object, fingerprints: frozenset[str]
) -> None:
    complete = job(cluster=cluster)
    objects = attempt_objects(complete, Names("job", UID, 1), None)
    monkeypatch.delattr("batchinference.rendering.warm.fingerprint_of")
    assert warm_start(complete, objects, fingerprints) is None


def test_job_file_that_is_too_large_for_a_variable_does_not_fit() -> None:
    """Linux limits the length of a variable. The texts cannot be compressed."""
    names = ["".join(digest_of(f"{n} {part}") for part in range(15)) for n in range(256)]
    paths = [f"s3://in/{name}" for name in names]
    large = job(read={"format": "text", "paths": paths})
    config_map, _ = attempt_objects(large, Names("job", UID, 1), None)
    assert len(packed(config_map["data"])) > MAX_PACKED
    assert start(large) is None


def test_names_and_files_of_a_job_are_not_in_a_warm_cluster() -> None:
    cluster = warm_cluster(job("secretive"), "any", NAME, "f", OWNER)
    assert "secretive" not in str(cluster)
    head = cluster["spec"]["headGroupSpec"]["template"]
    groups = [head, *(group["template"] for group in cluster["spec"]["workerGroupSpecs"])]
    assert {template["metadata"]["labels"][NAME_LABEL] for template in groups} == {WARM}
    assert {"name": JOB_VOLUME, "emptyDir": {}} in head["spec"]["volumes"]
    assert all(variable not in str(cluster) for variable in DIGEST_VARIABLES.values())


def test_packages_are_read_only_in_pods_that_start_before_a_job() -> None:
    """Otherwise the hook would slow down the start of workers that a job waits for."""
    complete = job(steps=[model_step(resources={"gpu": 1})])
    spec = warm_cluster(complete, "any", NAME, "f", OWNER)["spec"]
    hooks = {
        group["minReplicas"] > 0: "lifecycle" in group["template"]["spec"]["containers"][0]
        for group in spec["workerGroupSpecs"]
    }
    assert hooks == {True: True, False: False}
    assert "lifecycle" in spec["headGroupSpec"]["template"]["spec"]["containers"][0]


def test_hook_of_a_patch_is_kept() -> None:
    hook = {"postStart": {"exec": {"command": ["own"]}}}
    pod = {"spec": {"containers": [{"name": "ray", "lifecycle": hook}]}}
    patched = job(cluster={"patches": [{"groups": ["*"], "pod": pod}]})
    cluster = warm_cluster(patched, "any", NAME, "f", OWNER)
    (ray,) = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert ray["lifecycle"] == hook
    assert pod["spec"]["containers"][0]["lifecycle"] == hook


def test_ray_job_selects_the_cluster_and_differs_only_where_kuberay_requires_it() -> None:
    """KubeRay refuses a TTL without shutdownAfterJobFinishes, and does not delete the cluster."""
    own, warm = render(parse(document())).ray_job, ray_job(job())
    changed = {
        name
        for name in own["spec"].keys() | warm["spec"].keys()
        if own["spec"].get(name) != warm["spec"].get(name)
    }
    assert changed == {
        *("clusterSelector", "entrypoint", "metadata", "rayClusterSpec"),
        *("shutdownAfterJobFinishes", "ttlSecondsAfterFinished"),
    }
    assert warm["spec"]["clusterSelector"] == {"ray.io/cluster": NAME}
    assert warm["spec"]["shutdownAfterJobFinishes"] is False
    assert "ttlSecondsAfterFinished" not in warm["spec"]
    assert {**own, "spec": None} == {**warm, "spec": None}


def test_entrypoint_unpacks_the_files_and_passes_digests_and_variables(tmp_path: Path) -> None:
    files = {"job.yaml": "text: 'quotes', $HOME, \u00e9\n", "plan.json": '{"a": 1}'}
    command = unpacking_entrypoint(files, {"PRICES": '{"currency": "EUR"}'})
    assert packed(files) == packed(dict(files)), "two renderings are equal"
    config = {"runtime_env": {}, "metadata": {"a": "b", FILES: packed(files), "c": "d"}}
    program = tmp_path / "batchinference"
    program.write_text('#!/bin/sh\nenv > env.txt\necho "$@" > args.txt\n')
    program.chmod(0o755)
    here = command.replace(JOB_DIRECTORY, str(tmp_path))
    variables = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(config)}  # as Ray sets it
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **variables}
    subprocess.run(here, shell=True, check=True, cwd=tmp_path, env=environment)
    for name, text in files.items():
        assert (tmp_path / name).read_text() == text
        variable = f"{DIGEST_VARIABLES[name]}={digest_of(text)}"
        assert variable in (tmp_path / "env.txt").read_text().splitlines()
    assert 'PRICES={"currency": "EUR"}' in (tmp_path / "env.txt").read_text().splitlines()
    assert (tmp_path / "args.txt").read_text().split()[-1] == f"{tmp_path}/job.yaml"
