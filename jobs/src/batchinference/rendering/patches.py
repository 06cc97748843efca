"""Applies the patches of the platform (`defaults.patches`) to the rendered pods.

Patches are strategic merge patches, as with `kubectl patch`. Objects are merged by field, and
`null` deletes a field. Lists of items with a merge key are merged by this key, and new items are
appended. All other lists are replaced. The merge keys are those of Kubernetes."""

from collections.abc import Sequence
from typing import Any

from batchinference.plan.groups import HEAD_GROUP
from batchinference.spec.job import GROUP
from batchinference.spec.platform_defaults import Patch
from batchinference.spec.problems import Problem, SpecError

Object = dict[str, Any]
_BY_NAME = ("name",)
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("containers", "initContainers", "volumes", "env"), _BY_NAME),
    **dict.fromkeys(("imagePullSecrets", "resourceClaims", "claims", "schedulingGates"), _BY_NAME),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""The fields of a pod whose lists are merged, with their merge keys."""
_DEFAULTS = {"protocol": "TCP"}
_NEEDED = ("labels", "containers", "env")
"""Fields that no patch can delete. The operator adds to them, and finds pods by them."""


def patched(ray_cluster: Object, patches: Sequence[Patch]) -> Object:
    """Return the RayCluster spec with the patches applied to its pods, in order."""
    head, workers = ray_cluster["headGroupSpec"], ray_cluster["workerGroupSpecs"]
    return {
        **ray_cluster,
        "headGroupSpec": {**head, "template": _patched(HEAD_GROUP, head["template"], patches)},
        "workerGroupSpecs": [
            {**group, "template": _patched(group["groupName"], group["template"], patches)}
            for group in workers
        ],
    }


def _patched(group: str, template: Object, patches: Sequence[Patch]) -> Object:
    for index, patch in enumerate(patches):
        if patch.applies_to(group):
            changes = patch.pod.model_dump(exclude_defaults=True)
            template = strategic_merge(template, changes, f"defaults.patches[{index}].pod")
    return template


def strategic_merge(target: Object, patch: Object, path: str = "") -> Any:
    """Return the object with the patch applied. Raises SpecError for a change that is refused."""
    merged = dict(target)
    for name, value in patch.items():
        at = f"{path}.{name}".strip(".")
        if name.startswith(f"{GROUP}/") or (value is None and name in _NEEDED):
            raise SpecError([Problem(at, "the operator needs this field. Remove the change")])
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_value(name, merged.get(name), value, at)
    return merged


def _merge_value(name: str, target: Any, value: Any, path: str) -> Any:
    if isinstance(target, dict) and not isinstance(value, dict):
        raise _error(path, "a mapping")
    if isinstance(target, list) and not isinstance(value, list):
        raise _error(path, "a list")
    if isinstance(value, dict):
        return strategic_merge(target or {}, value, path)
    if isinstance(value, list) and name in MERGE_KEYS:
        return _merge_list(MERGE_KEYS[name], target or [], value, path)
    return value


def _merge_list(keys: tuple[str, ...], target: list[Any], items: list[Any], path: str) -> list[Any]:
    merged = {_key(keys, item): item for item in target}
    for item in items:
        if not isinstance(item, dict) or item.get(keys[0]) is None:
            raise _error(path, f"each item to be a mapping with {keys[0]}")
        key = _key(keys, item)
        merged[key] = strategic_merge(merged.get(key, {}), item, f"{path}[{item[keys[0]]}]")
    return list(merged.values())


def _error(path: str, expected: str) -> SpecError:
    return SpecError([Problem(path, f"expected {expected}")])


def _key(keys: tuple[str, ...], item: Object) -> str:
    """Return the key of an item as text, because the types of its values may have no hash."""
    return repr([item.get(key, _DEFAULTS.get(key)) for key in keys])
