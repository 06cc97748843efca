"""The policy of the platform: which settings of their pods jobs may choose."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from batchinference.rendering.policy import PlatformPolicy, parse_policy
from batchinference.spec import SpecError, parse
from plugins.messages import Messages
from support.cluster.deployment import CHART
from support.documents.minimal import document
from support.documents.policy_violations import VIOLATIONS


def refused(policy: PlatformPolicy, cluster: Any) -> list[str]:
    return [str(one) for one in policy.check_spec(parse(document(cluster=cluster)).spec)]


def test_default_refuses_access_to_nodes() -> None:
    policy = PlatformPolicy()
    allowed = PlatformPolicy(volumes=True, host_access=True, annotations=True)
    by_default = {"nfs", "hostPath", "annotations", "envFrom"}
    for violation in VIOLATIONS:
        cluster = violation.spec.get("cluster", {})
        assert refused(allowed, cluster) == [], violation
        kinds = {*cluster, *(kind for volume in cluster.get("volumes", []) for kind in volume)}
        assert bool(refused(policy, cluster)) == bool(kinds & by_default), violation
    values = yaml.safe_load((CHART / "values.yaml").read_text())["policy"]
    assert PlatformPolicy.model_validate(values) == policy


def test_name_is_a_field_of_volumes_only() -> None:
    assert refused(PlatformPolicy(annotations=[]), {"annotations": {"name": "x"}}) != []


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
    result = refused(PlatformPolicy(images=[prefix]), {"image": image})
    assert (result == []) == allowed


@pytest.mark.parametrize(
    ("prefix", "allowed"),
    [("", False), ("N", False), ("NVIDIA_VISIBLE_DEVICES", False),
     ("NVIDIA_VISIBLE_DEVICES2", True), ("AWS_", True), ("nvidia_", True)],
)  # fmt: skip
def test_variables_of_devices_cannot_be_set_by_an_object(prefix: str, allowed: bool) -> None:
    source = {"configMapRef": {"name": "c"}} | ({"prefix": prefix} if prefix else {})
    assert (refused(PlatformPolicy(), {"envFrom": [source]}) == []) == allowed
    assert refused(PlatformPolicy(host_access=True), {"envFrom": [source]}) == []


@pytest.mark.parametrize(
    "policy",
    [
        *("hostAccess: yes please", "annotations: {}", "annotations: false", "patches: true"),
        *("images: [registry.example]", "volumes: false", "serviceAccounts: a", "profiles: []"),
        *("volume: []", "[", "a", "policy: {images: true}", "notifications: true"),
        *("images: [a/b, {a: b}]", "tolerations: ['']"),
    ],
)
def test_invalid_policy_is_refused(policy: str, messages: Messages) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(policy)
    messages.check(str(caught.value))
