"""The policy of the platform: which settings of their pods jobs may choose."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering.policy import (
    RESTRICTED_VOLUMES,
    PlatformPolicy,
    parse_policy,
    refusal,
)
from batchinference.rendering.policy_cel import admission_rules
from batchinference.spec import SpecError
from batchinference.spec.cluster import Cluster
from support.cluster.deployment import CHART
from support.documents.policy_violations import VIOLATIONS

CONTAINER = {"name": "ray", "volumeMounts": [{"mountPath": "/x", "name": "x"}]}
ANNOTATIONS = {"metadata": {"annotations": {"example.com/a": "1"}}}


def refused(policy: PlatformPolicy, cluster: Any) -> list[str]:
    return [str(one) for one in policy.check(Cluster.model_validate(cluster))]


def patching(*pods: Any) -> Any:
    return {"patches": [{"groups": ["*"], "pod": pod} for pod in pods]}


def test_default_allows_everything_but_patches_and_access_to_nodes() -> None:
    policy = PlatformPolicy()
    allowed = PlatformPolicy(volumes=True, host_access=True, patches=True)
    for violation in VIOLATIONS:
        cluster = violation.spec.get("cluster", {})
        assert refused(allowed, cluster) == [], violation
        assert bool(refused(policy, cluster)) == bool(cluster.keys() & {"patches", "volumes"})
    assert policy.volumes == list(RESTRICTED_VOLUMES)


@pytest.mark.parametrize(
    ("prefix", "image", "allowed"),
    [
        ("registry.example/", "registry.example/app:1", True),
        ("registry.example/team", "registry.example/team/app", True),
        ("registry.example/app", "registry.example/app", True),
        ("registry.example/app", "registry.example/app:1", True),
        ("registry.example/app", "registry.example/app@sha256:0", True),
        ("registry.example/app", "registry.example/application", False),
        ("registry.example/", "registry.example.attacker/app", False),
        ("registry.example/", "Registry.example/app", False),
        ("docker.io/", "ubuntu", False),
    ],
)
def test_image_begins_with_a_registry_or_repository(prefix: str, image: str, allowed: bool) -> None:
    found = refused(PlatformPolicy(images=[prefix]), {"image": image})
    assert (found == []) == allowed


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"spec": {"affinity": {"nodeAffinity": {}}}}, None),
        (ANNOTATIONS, None),
        ({"spec": {"containers": [CONTAINER]}}, None),
        ({"spec": {"containers": [{**CONTAINER, "image": "x"}]}}, "spec.containers.image"),
        ({"spec": {"containers": [{"name": "new"}]}}, "spec.containers"),
        ({"spec": {"containers": None}}, "spec.containers"),
        ({"spec": {"containers": "x"}}, "spec.containers"),
        ({"spec": {"affinityOther": {}}}, "spec.affinityOther"),
        ({"metadata": {"labels": {"a": "1"}}}, "metadata.labels.a"),
        ({"spec": {}}, None),
    ],
    ids=str,
)
def test_only_listed_fields_may_be_patched(pod: Any, path: str | None) -> None:
    allowed = ["metadata.annotations", "spec.affinity", "spec.containers.volumeMounts"]
    message = f"it {refusal('patches', ', '.join(allowed))}"
    expected = [] if path is None else [f"spec.cluster.patches[1].pod.{path}: {message}"]
    assert refused(PlatformPolicy(patches=allowed), patching(ANNOTATIONS, pod)) == expected


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [("example.com/*", True), ("example.com/a", True), ("other.com/*", False), ("*.com/b", False)],
)
def test_names_of_annotations_may_be_limited(pattern: str, allowed: bool) -> None:
    policy = PlatformPolicy(patches=[f"metadata.annotations[{pattern}]"])
    assert (refused(policy, patching(ANNOTATIONS)) == []) == allowed


@pytest.mark.parametrize(
    "policy",
    [
        *("patches: yes please", "patches: [status.x]", "patches: [spec]", "patches: {}"),
        *("images: [registry.example]", "volumes: false", "serviceAccounts: a", "profiles: []"),
        *("patches: ['metadata.annotations[']", "patches: ['metadata[a]']", "volume: []", "[", "a"),
    ],
)
def test_invalid_policy_is_refused(policy: str) -> None:
    with pytest.raises(SpecError):
        parse_policy(policy)


def test_rules_of_the_chart_are_generated() -> None:
    file = CHART / "files" / "admission-rules.yaml"
    assert file.read_text() == admission_rules(), "run `make generate`"


@pytest.mark.parametrize("profile", ["RuntimeDefault", "Localhost"])
def test_fields_with_a_safe_value_are_allowed(profile: str) -> None:
    context = {
        "allowPrivilegeEscalation": False,
        "procMount": "Default",
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": profile},
        "appArmorProfile": {"type": profile},
    }
    container = {**CONTAINER, "securityContext": context}
    pod = {"spec": {"hostNetwork": False, "containers": [container]}}
    assert refused(PlatformPolicy(patches=True), patching(pod)) == []
