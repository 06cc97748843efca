"""A strategic merge changes the list items that it names, as `kubectl patch` does."""

from __future__ import annotations

from typing import Any

import pytest

from batchinference.rendering.strategic_merge import MERGE_KEYS, MergeError, strategic_merge

RAY = {"name": "ray", "image": "a", "env": [{"name": "A", "value": "1"}]}
PORT = {"containerPort": 80}
SPREAD = {"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3, "d": 4}}, {"a": {"b": 1, "c": 3, "d": 4}}),
        ({"a": 1, "b": {"c": 2}}, {"a": None, "b": {"c": None}}, {"b": {}}),
        ({}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
        (
            {"containers": [RAY]},
            {"containers": [{"name": "log"}, {"name": "ray", "image": "b"}]},
            {"containers": [{**RAY, "image": "b"}, {"name": "log"}]},
        ),
        (
            {"containers": [RAY]},
            {"containers": [{"name": "ray", "env": [{"name": "B"}, {"name": "A", "value": "2"}]}]},
            {"containers": [{**RAY, "env": [{"name": "A", "value": "2"}, {"name": "B"}]}]},
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
    ],
    ids=[
        *("objects", "null", "null in a new object", "containers", "variables", "ports"),
        *("topology spread", "a list without keys", "an empty list"),
    ],
)
def test_patch_is_merged(target: Any, patch: Any, merged: Any) -> None:
    assert strategic_merge(target, patch) == merged


@pytest.mark.parametrize("field", MERGE_KEYS)
def test_item_with_a_known_key_is_changed_and_another_is_appended(field: str) -> None:
    old, new = ({key: f"{key}-{number}" for key in MERGE_KEYS[field]} for number in (1, 2))
    patch = {field: [new, {**old, "more": 1}]}
    assert strategic_merge({field: [old]}, patch) == {field: [{**old, "more": 1}, new]}


@pytest.mark.parametrize(
    ("patch", "path", "message"),
    [
        ({"containers": {}}, "containers", "expected a list"),
        ({"containers": [{"name": "ray", "env": "x"}]}, "containers[ray].env", "expected a list"),
        ({"security": []}, "security", "expected a mapping"),
        ({"containers": ["ray"]}, "containers", "expected each item to be a mapping with name"),
        ({"volumes": [{"name": None}]}, "volumes", "expected each item to be a mapping with name"),
    ],
)
def test_value_of_another_type_is_refused(patch: Any, path: str, message: str) -> None:
    with pytest.raises(MergeError) as refused:
        strategic_merge({"containers": [RAY], "security": {"a": 1}}, patch)
    assert (refused.value.path, str(refused.value)) == (path, message)
