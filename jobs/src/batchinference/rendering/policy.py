"""Checks the settings of a job against the policy of the platform.

The platform's own defaults are not checked. `policy_cel` has the same rules for the API server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel, to_snake

from batchinference.rendering.strategic_merge import MERGE_KEYS
from batchinference.spec.cluster import Cluster
from batchinference.spec.documents import parse_settings
from batchinference.spec.patches import Patch
from batchinference.spec.problems import Problem

Path = tuple[str, ...]
PodPath = Annotated[
    str, Field(pattern=r"^(metadata|spec)(\.[A-Za-z]+)+(\[[^\[\]]+\])?$", max_length=128)
]
"""A field of a pod, such as spec.affinity. List items have the path of their list. A field may end
with a pattern for the names in it, such as metadata.annotations[example.com/*]."""
Name = Annotated[str, Field(min_length=1, max_length=316)]
Names = Annotated[list[Name], Field(max_length=64)]
ImagePrefix = Annotated[str, Field(pattern="^[^/ ]+/[^ ]*$", max_length=512)]
"""A registry or a repository. The slash is required, because the prefix `registry.example` would
also match `registry.example.attacker.example`."""

RESTRICTED_VOLUMES = (
    *("persistentVolumeClaim", "configMap", "secret", "emptyDir", "ephemeral", "projected"),
    *("downwardAPI", "csi", "image"),
)
"""The kinds of volumes that the Pod Security Standard `restricted` allows."""
Tree = dict[str, "Tree"]
NO_KINDS = ("name", "mountPath", "readOnly")
"""Fields of a volume that do not name its kind."""
UNSET = (None, False, 0, "")
"""Values of fields that are not set."""
_PROFILES = ("RuntimeDefault", "Localhost")
HARMLESS: dict[str, tuple[Any, ...]] = {
    "procMount": ("Default",),
    "seccompProfile.type": _PROFILES,
    "appArmorProfile.type": _PROFILES,
    "capabilities.drop": (["ALL"],),
}
"""Other values that give no access to a node, by the end of the path of their field."""
HOST_ANNOTATIONS = (
    "container.apparmor.security.beta.kubernetes.io/",
    "container.seccomp.security.alpha.kubernetes.io/",
    "seccomp.security.alpha.kubernetes.io/",
    "cdi.k8s.io/",
    "io.kubernetes.cri-o.Devices",
    "k8s.v1.cni.cncf.io/networks",
    "sidecar.istio.io/userVolume",
)
"""The beginnings of annotations that change the security context of a pod, or give it devices,
networks or directories of its node."""
NULL = "null"
NONE = "none"


class PlatformPolicy(BaseModel):
    """The chart value `policy`. True allows all values, a list only the listed values.

    The maximum number of devices is set by `defaults.limits`.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, strict=True, populate_by_name=True
    )

    volumes: Literal[True] | Names = list(RESTRICTED_VOLUMES)
    """Kinds of volumes."""
    images: Literal[True] | Annotated[list[ImagePrefix], Field(max_length=64)] = True
    """Registries and repositories of images."""
    service_accounts: Literal[True] | Names = True
    """Names of ServiceAccounts."""
    priority_classes: Literal[True] | Names = True
    """Names of PriorityClasses."""
    queue_priority_classes: Literal[True] | Names = True
    """Names of WorkloadPriorityClasses of Kueue."""
    runtime_classes: Literal[True] | Names = True
    """Names of RuntimeClasses."""
    tolerations: Literal[True] | Names = True
    """Keys of taints."""
    profiles: bool = True
    """Whether jobs may define or change profiles."""
    max_priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] = 1_000_000_000
    """Maximum `spec.priority`."""
    host_access: bool = False
    """Whether patches may give a pod access to its node."""
    patches: bool | Annotated[list[PodPath], Field(max_length=64)] = False
    """Whether jobs may set `cluster.patches`, or the list of pod fields that patches may change."""

    def check(self, own: Cluster) -> list[Problem]:
        """Return the problems with the settings of a job, before the defaults are merged."""
        settings = own.model_dump(by_alias=True, exclude_none=True)
        found = [problem for rule in RULES for problem in rule.check(self, settings)]
        if isinstance(self.patches, list):
            found += _check_fields(self.patches, own.patches)
        return found

    def check_priority(self, priority: int) -> list[Problem]:
        """Return a problem if the priority of a job is above the maximum."""
        if priority <= self.max_priority:
            return []
        message = f"{priority} is above policy.maxPriority ({self.max_priority}). Lower it"
        return [Problem("spec.priority", message)]


@dataclass(frozen=True)
class Rule:
    """A rule of the policy, which checks the values of some fields.

    In a path, `[]` matches each item of a list, and `{}` each value of a mapping. `*` yields the
    names of the fields, such as the kind of a volume. After a field, `?` yields an empty string if
    the field is missing, and `!` yields only null.
    """

    policy: str
    """The name of the chart value."""
    paths: tuple[str, ...]
    """The fields below `spec.cluster`."""
    compare: Literal["name", "image", "any", "annotation"] = "name"
    """With `name`, a value must be listed. With `image`, it must begin with a listed prefix. With
    `any`, every value is refused, except for harmless ones; with `annotation`, only names that
    begin with one of HOST_ANNOTATIONS."""

    @cached_property
    def tree(self) -> Tree:
        """The paths as a tree of their parts."""
        root: Tree = {}
        for path in self.paths:
            below = root
            for step in re.findall(r"\[\]|\{\}|\*|\w+[?!]?", path):
                below = below.setdefault(step, {})
        return root

    def check(self, policy: PlatformPolicy, settings: dict[str, Any]) -> Iterator[Problem]:
        """Yield a problem for each value that the policy does not allow."""
        allowed = getattr(policy, to_snake(self.policy))
        if allowed is True or (self.policy == "patches" and allowed):
            return
        for path, value in _find(settings, self.tree, "spec.cluster"):
            if self.compare in ("any", "annotation"):
                if self._gives_access(path, value):
                    named = f"'{value}'" if isinstance(value, str) else "it"
                    yield Problem(path, f"{named} {refusal(self.policy, 'false')}")
            elif isinstance(value, str) and not self._allows(allowed, value):
                shown = ", ".join(allowed) or NONE
                yield Problem(path, f"'{value}' {refusal(self.policy, shown)}")

    def _gives_access(self, path: str, value: Any) -> bool:
        if self.compare == "annotation":
            return str(value).startswith(HOST_ANNOTATIONS)
        return value not in harmless_values(path)

    def _allows(self, names: list[str], value: str) -> bool:
        if self.compare == "name":
            return value in names
        return any(
            value == name or value.startswith(name if name.endswith("/") else separated)
            for name in names
            for separated in (f"{name}/", f"{name}:", f"{name}@")
        )


def harmless_values(path: str) -> tuple[Any, ...]:
    """Return the values of a field that give no access to a node."""
    return next(
        (UNSET + values for end, values in HARMLESS.items() if path.endswith(f".{end}")), UNSET
    )


def refusal(policy: str, allowed: str) -> str:
    """Return the end of the message about a value that the policy does not allow."""
    fix = "Change or remove it, or ask the platform team"
    return f"is not allowed by the platform (policy.{policy}: {allowed}). {fix}"


def _find(value: Any, tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of all fields that match a tree."""
    if not tree:
        yield path, value
    for step, below in tree.items():
        for name, child in _children(value, step):
            yield from _find(child, below, f"{path}{name}")


def _children(value: Any, step: str) -> list[tuple[str, Any]]:
    """Return the path suffix and the value of each child; empty if `step` expects another type."""
    if step == "[]":
        items = value if isinstance(value, list) else []
        return [(f"[{index}]", item) for index, item in enumerate(items)]
    if not isinstance(value, dict):
        return []
    if step == "{}":
        return [(f".{name}", child) for name, child in value.items()]
    if step == "*":
        kinds = [name for name, child in value.items() if child is not None]
        return [(f".{name}", name) for name in kinds if name not in NO_KINDS]
    name = step.rstrip("?!")
    child = value.get(name)
    if step.endswith("!"):
        return [(f".{name}", NULL)] if name in value and child is None else []
    if child is None and step == name:
        return []
    return [(f".{name}", "" if child is None else child)]


_POD = "patches[].pod.spec"
_CONTAINERS = (f"{_POD}.containers[]", f"{_POD}.initContainers[]")
_OF_CONTAINERS = (
    *("privileged", "allowPrivilegeEscalation", "allowPrivilegeEscalation!", "procMount"),
    *("capabilities!", "capabilities.add[]", "capabilities.drop", "capabilities.drop!"),
    "seccompProfile!",
)
"""Fields of the security context of a container that can give it access to its node."""
_OF_ALL = (
    *("seccompProfile.type", "appArmorProfile.type", "seLinuxOptions"),
    "windowsOptions.hostProcess",
)
"""The same for the security contexts of containers and of pods."""
_REQUESTS = tuple(
    f"{hook}.{kind}.host"
    for hook in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart",
                 "lifecycle.preStop")
    for kind in ("httpGet", "tcpSocket")
)  # fmt: skip
"""Addresses to which the kubelet sends requests from the network of the node."""

RULES = (
    Rule("volumes", ("volumes[]*", f"{_POD}.volumes[]*")),
    Rule(
        "images",
        ("image", *(f"{one}.image" for one in _CONTAINERS), f"{_POD}.volumes[].image.reference"),
        "image",
    ),
    Rule(
        "serviceAccounts",
        ("serviceAccountName", f"{_POD}.serviceAccountName", f"{_POD}.serviceAccount"),
    ),
    Rule("priorityClasses", ("priorityClassName", f"{_POD}.priorityClassName")),
    Rule("queuePriorityClasses", ("queuePriorityClassName",)),
    Rule("runtimeClasses", ("profiles{}.runtimeClassName", f"{_POD}.runtimeClassName")),
    Rule(
        "tolerations",
        tuple(f"{place}tolerations[].key?" for place in ("", "head.", "profiles{}.", f"{_POD}.")),
    ),
    Rule("profiles", ("profiles{}",), "any"),
    Rule(
        "hostAccess",
        (
            *(f"{_POD}.{name}" for name in ("hostNetwork", "hostPID", "hostIPC", "nodeName")),
            *(f"{one}.ports[].hostPort" for one in _CONTAINERS),
            *(f"{one}.{name}" for one in _CONTAINERS for name in _REQUESTS),
            *(f"{one}.securityContext!" for one in _CONTAINERS),
            *(
                f"{one}.securityContext.{name}"
                for one in _CONTAINERS
                for name in (*_OF_CONTAINERS, *_OF_ALL)
            ),
            *(f"{_POD}.securityContext.{name}" for name in ("sysctls[]", *_OF_ALL)),
        ),
        "any",
    ),
    Rule("hostAccess", ("patches[].pod.metadata.annotations*",), "annotation"),
    Rule("patches", ("patches[]",), "any"),
)


def parse_policy(text: str) -> PlatformPolicy:
    """Return the policy in a YAML text. Raises SpecError, which lists every problem."""
    return parse_settings(text, PlatformPolicy)


def _check_fields(allowed: Sequence[str], patches: Sequence[Patch]) -> list[Problem]:
    """Return a problem for each field that a patch sets and that is not below an allowed field."""
    fields = [_AllowedField.of(path) for path in allowed]
    message = f"it {refusal('patches', ', '.join(allowed) or NONE)}"
    return [
        Problem(f"spec.cluster.patches[{index}].pod.{'.'.join(path)}", message)
        for index, patch in enumerate(patches)
        for path in dict.fromkeys(_fields_of(patch.pod.model_dump(exclude_defaults=True)))
        if not any(field.contains(path) for field in fields)
    ]


@dataclass(frozen=True)
class _AllowedField:
    """A field that patches may change, and a pattern for the names in it."""

    path: Path
    names: str

    @classmethod
    def of(cls, text: str) -> _AllowedField:
        path, _, names = text.rstrip("]").partition("[")
        return cls(tuple(path.split(".")), names)

    def contains(self, path: Path) -> bool:
        size = len(self.path)
        if path[:size] != self.path or not self.names:
            return path[:size] == self.path
        return len(path) > size and fnmatchcase(path[size], self.names)


def _fields_of(value: Any, path: Path = (), keys: Path = ()) -> Iterator[Path]:
    """Yield the paths of all fields that a patch sets, except for the keys of list items."""
    if isinstance(value, dict) and (value or len(path) > 1):
        changed = {name: child for name, child in value.items() if name not in keys}
        if not changed:
            yield path
        for name, child in changed.items():
            yield from _fields_of(child, (*path, name))
    elif isinstance(value, list) and value and path[-1] in MERGE_KEYS:
        for item in value:
            yield from _fields_of(item, path, MERGE_KEYS[path[-1]])
    elif path and (value != {} or len(path) > 1):
        yield path
