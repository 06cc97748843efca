"""The policy of the platform forbids or limits the patches of jobs."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec.patches import Patch

CONTAINER = {"name": "ray", "volumeMounts": [{"mountPath": "/x", "name": "x"}]}
ANNOTATIONS = {"metadata": {"annotations": {"example.com/a": "1"}}}


def refused(policy: Any, *pods: Any) -> list[str]:
    patches = [Patch.model_validate({"groups": ["*"], "pod": pod}) for pod in pods]
    return [str(one) for one in PlatformPolicy(patches=policy).check_patches(patches)]


def test_patches_are_off_by_default_and_can_be_switched_on() -> None:
    assert PlatformPolicy().patches is False
    assert refused(False) == refused(True, {"spec": {"hostNetwork": True}}) == []
    assert refused(False, {}) == [
        "spec.cluster.patches: the platform's policy does not allow patches (patches: false). "
        "Remove it, or ask who runs the operator"
    ]


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
        ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
        ({"spec": {"affinityOther": {}}}, "spec.affinityOther"),
        ({"metadata": {"labels": {"a": "1"}}}, "metadata.labels.a"),
        ({"spec": {}}, None),
    ],
    ids=str,
)
def test_only_listed_fields_may_be_patched(pod: Any, path: str | None) -> None:
    allowed = ["metadata.annotations", "spec.affinity", "spec.containers.volumeMounts"]
    message = (
        "the platform's policy does not allow this field in patches (patches: "
        f"{', '.join(allowed)}). Remove it, or ask who runs the operator"
    )
    expected = [] if path is None else [f"spec.cluster.patches[1].pod.{path}: {message}"]
    assert refused(allowed, ANNOTATIONS, pod) == expected


@pytest.mark.parametrize("policy", ["yes", ["status.x"], ["spec"], [1], {}])
def test_invalid_policy_is_refused(policy: Any) -> None:
    with pytest.raises(ValidationError):
        PlatformPolicy(patches=policy)
