"""The patches of the platform change any field of the pods, as `kubectl patch` does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from batchinference.rendering import Names, attempt_objects, with_platform_defaults
from batchinference.rendering.patches import MERGE_KEYS, strategic_merge
from batchinference.spec import SpecError, parse_defaults
from batchinference.spec.platform_defaults import PlatformDefaults
from plugins.messages import Messages
from support.documents.minimal import model_step
from support.documents.pages import blocks
from support.documents.parsed import job
from support.documents.refusals import short

RAY = {"name": "ray", "image": "a", "env": [{"name": "A", "value": "1"}]}
PORT = {"containerPort": 80}
SPREAD = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


def pods(*patches: Any) -> list[Any]:
    """Return the pods of the head, the group `cpu` and the group `embed` with these patches."""
    defaults = PlatformDefaults.model_validate({"image": "x", "patches": list(patches)})
    complete = with_platform_defaults(job(steps=[model_step(resources={"gpu": 1})]), defaults)
    _, ray_job = attempt_objects(complete, Names("j", "u", 1), None, platform=defaults)
    cluster = ray_job["spec"]["rayClusterSpec"]
    return [one["template"] for one in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def patch(groups: list[str], metadata: Any = None, **spec: Any) -> dict[str, Any]:
    return {"groups": groups, "pod": {"metadata": metadata or {}, "spec": spec}}


def test_patches_apply_to_their_groups_in_order() -> None:
    made = pods(
        patch(["*"], {"annotations": {"a": "b"}}, schedulerName="all"),
        patch(["embed", "gone"], schedulerName="own"),
        patch(["head"], schedulerName=None),
    )
    assert [pod["metadata"]["annotations"]["a"] for pod in made] == ["b"] * 3
    assert [pod["spec"].get("schedulerName") for pod in made] == [None, "all", "own"]


def test_patch_of_another_type_is_refused_at_its_path() -> None:
    with pytest.raises(SpecError) as refused:
        pods(patch(["head"]), patch(["*"], containers={}))
    assert str(refused.value) == "defaults.patches[1].pod.spec.containers: expected a list"


def test_job_has_no_volume_with_the_name_of_one_of_a_patch(messages: Messages) -> None:
    """The job could mount the volume of the platform, if both volumes were merged."""
    node = {"name": "node", "emptyDir": None, "hostPath": {"path": "/platform"}}
    defaults = PlatformDefaults.model_validate({"patches": [patch(["*"], volumes=[node])]})
    own = job(cluster={"volumes": [{"name": "node", "emptyDir": {}}]})
    with messages.raises(SpecError):
        with_platform_defaults(own, defaults)


def test_patches_are_for_the_platform_only() -> None:
    assert parse_defaults("patches: [{groups: [head], pod: {}}]").patches[0].groups == ["head"]
    with pytest.raises(SpecError, match=r"spec.cluster.patches: was removed"):
        job(cluster={"patches": []})


def test_patch_of_the_page_adds_a_sidecar() -> None:
    (values,) = (block for block in blocks("docs/devices.md", "yaml") if "patches" in block)
    (sidecar,) = yaml.safe_load(values)["defaults"]["patches"]
    for pod in pods(sidecar):
        assert [one["name"] for one in pod["spec"]["containers"]] == ["ray", "database-proxy"]


@pytest.mark.parametrize(
    ("target", "changes", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}, {"a": {"b": 1, "c": 3, "d": 4}}),
        ({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"c": None}}, {"b": {}}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        (
            {"containers": [RAY]},
            {"containers": [{"name": "log"}, {"name": "ray", "env": [{"name": "B"}]}]},
            {"containers": [{**RAY, "env": [*RAY["env"], {"name": "B"}]}, {"name": "log"}]},
        ),
        (
            {"ports": [PORT]},
            {"ports": [{**PORT, "protocol": "TCP", "name": "x"}, {**PORT, "protocol": "UDP"}]},
            {"ports": [{**PORT, "protocol": "TCP", "name": "x"}, {**PORT, "protocol": "UDP"}]},
        ),
        (
            {"topologySpreadConstraints": [SPREAD]},
            {"topologySpreadConstraints": [{**SPREAD, "maxSkew": 2}]},
            {"topologySpreadConstraints": [{**SPREAD, "maxSkew": 2}]},
        ),
        (
            {"tolerations": [{"key": "a"}]},
            {"tolerations": [{"key": "b"}]},
            {"tolerations": [{"key": "b"}]},
        ),
        ({"args": ["a"]}, {"args": []}, {"args": []}),
        *(
            ({field: [dict.fromkeys(keys, "1")]}, {field: [dict.fromkeys(keys, "2")]},
             {field: [dict.fromkeys(keys, "1"), dict.fromkeys(keys, "2")]})
            for field, keys in MERGE_KEYS.items()
        ),
    ],
)  # fmt: skip
def test_patch_is_merged(target: Any, changes: Any, merged: Any) -> None:
    assert strategic_merge(target, changes) == merged


@pytest.mark.parametrize(
    "changes",
    [
        {"containers": [{"name": "ray", "env": "x"}]},
        {"security": []},
        {"containers": ["ray"]},
        {"volumes": [{"name": None}]},
        {"containers": [{"name": "ray", "env": None}]},
        {"labels": {"batchinference.dev/name": "x"}},
    ],
    ids=short,
)
def test_invalid_patch_is_refused(changes: Any, messages: Messages) -> None:
    with messages.raises(SpecError):
        strategic_merge({"containers": [RAY], "security": {"a": 1}}, changes)
