"""Checks the settings of a job against the policy of the platform.

The platform's own defaults are not checked. The API server checks the same rules,
which `make generate` translates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel, to_snake

from batchinference.spec.base import URL_PREFIX
from batchinference.spec.cluster import Cluster
from batchinference.spec.documents import parse_settings
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.pods import DEVICE_VARIABLES
from batchinference.spec.problems import Problem

Name = Annotated[str, Field(min_length=1, max_length=316)]
Names = Annotated[list[Name], Field(max_length=64)]
ImagePrefix = Annotated[str, Field(pattern="^[^/ ]+/[^ ]*$", max_length=512)]
"""A registry or a repository. The slash is required, because the prefix `registry.example` would
also match `registry.example.attacker.example`."""
UrlPrefix = Annotated[str, Field(pattern=URL_PREFIX, max_length=512)]
"""A URL that ends with a slash: `https://example.com` could be the beginning of another host."""
RESTRICTED_VOLUMES = (
    *("persistentVolumeClaim", "configMap", "secret", "emptyDir", "ephemeral", "csi", "image"),
)
"""The kinds of volumes that the Pod Security Standard `restricted` allows."""
SAFE_ANNOTATIONS = (
    *("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"),
    *("prometheus.io/", "gke-gcsfuse/", "sidecar.istio.io/inject"),
)
"""Annotations that are not commands to a container runtime, a network or a service mesh."""
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
    queues: Literal[True] | Names = True
    """Names of LocalQueues of Kueue."""
    queue_priority_classes: Literal[True] | Names = True
    """Names of WorkloadPriorityClasses of Kueue."""
    runtime_classes: Literal[True] | Names = True
    """Names of RuntimeClasses."""
    schedulers: Literal[True] | Names = True
    """Names of schedulers."""
    tolerations: Literal[True] | Names = True
    """Keys of taints."""
    profiles: bool = True
    """Whether jobs may define or change profiles."""
    labels: Literal[True] | Names = True
    """Keys of labels. An entry that ends in `/` allows all keys that begin with it."""
    annotations: Literal[True] | Names = list(SAFE_ANNOTATIONS)
    """Keys of annotations. An entry that ends in `/` allows all keys that begin with it."""
    max_priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] = 1_000_000_000
    """Maximum `spec.priority`."""
    host_access: bool = False
    """Whether `envFrom` may set the variables with which a pod gets devices of its node."""

    notifications: Annotated[list[UrlPrefix], Field(max_length=64)] = []
    """URLs below which the operator sends notifications. When empty, jobs have none."""

    def check_spec(self, spec: BatchInferenceSpec) -> list[Problem]:
        """Return the problems with the spec of a job, before the defaults are merged."""
        problems = [*self.check(spec.cluster), *self.check_priority(spec.priority)]
        if spec.notifications and not self.notifications:
            problems.append(Problem("spec.notifications", f"it {refusal('notifications', NONE)}"))
        return problems

    def check(self, own: Cluster) -> list[Problem]:
        """Return the problems with the settings of a job, before the defaults are merged."""
        settings = own.model_dump(by_alias=True, exclude_none=True)
        return [problem for rule in RULES for problem in rule.check(self, settings)]

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
    the field is missing.
    """

    policy: str
    """The name of the chart value."""
    paths: tuple[str, ...]
    """The fields below `spec.cluster`."""
    compare: Literal["name", "kind", "prefix", "image", "any", "variable"] = "name"
    """With `name`, a value must be listed. With `kind`, it may also be the field `name`. With
    `prefix`, it may also begin with a listed prefix that ends in `/`, and with `image` with a
    listed registry or repository. With `any`, every value is refused, and with `variable`, the
    beginnings of the names of DEVICE_VARIABLES."""

    @cached_property
    def steps(self) -> list[list[str]]:
        """The parts of each path. A path with which another one begins is left out: each value is
        checked once."""
        steps = [re.findall(r"\[\]|\{\}|\*|\w+[?]?", path) for path in self.paths]
        begins = [longer[:size] for longer in steps for size in range(len(longer))]
        return [each for each in steps if each not in begins]

    def check(self, policy: PlatformPolicy, settings: dict[str, Any]) -> Iterator[Problem]:
        """Yield a problem for each value that the policy does not allow."""
        allowed = getattr(policy, to_snake(self.policy))
        if allowed is True:
            return
        shown = ", ".join(allowed or []) or ("false" if allowed is False else NONE)
        found = (each for steps in self.steps for each in _find(settings, steps, "spec.cluster"))
        for path, value in found:
            if not self._allows(allowed or [], value):
                named = f"'{value}'" if isinstance(value, str) else "it"
                yield Problem(path, f"{named} {refusal(self.policy, shown)}")

    def _allows(self, names: list[str], value: Any) -> bool:
        match self.compare:
            case "any":
                return False
            case "variable":
                return not any(name.startswith(value) for name in DEVICE_VARIABLES)
            case "prefix":
                begins = [name for name in names if name.endswith("/")]
                return value in names or value.startswith(tuple(begins))
            case "image":
                begins = [n if n.endswith("/") else f"{n}{end}" for n in names for end in "/:@"]
                return value in names or value.startswith(tuple(begins))
        return value in names or (self.compare == "kind" and value == "name")


def refusal(policy: str, allowed: str) -> str:
    """Return the end of the message about a value that the policy does not allow."""
    fix = "Change or remove it, or ask the platform team"
    return f"is not allowed by the platform (policy.{policy}: {allowed}). {fix}"


def _find(value: Any, steps: list[str], path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of all fields that match the steps of a path."""
    if not steps:
        yield path, value
    for name, child in _children(value, steps[0]) if steps else ():
        yield from _find(child, steps[1:], f"{path}{name}")


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
        return [(f".{name}", name) for name in value]
    name = step.rstrip("?")
    child = value.get(name)
    if child is None and step == name:
        return []
    return [(f".{name}", "" if child is None else child)]


RULES = (
    Rule("volumes", ("volumes[]*",), "kind"),
    Rule("images", ("image", "profiles{}.image", "volumes[].image.reference"), "image"),
    Rule("serviceAccounts", ("serviceAccountName",)),
    Rule("priorityClasses", ("priorityClassName",)),
    Rule("queues", ("queueName",)),
    Rule("queuePriorityClasses", ("queuePriorityClassName",)),
    Rule("runtimeClasses", ("profiles{}.runtimeClassName",)),
    Rule("schedulers", ("schedulerName",)),
    Rule("tolerations", tuple(f"{at}tolerations[].key?" for at in ("", "head.", "profiles{}."))),
    Rule("profiles", ("profiles{}",), "any"),
    Rule("labels", ("labels*",), "prefix"),
    Rule("annotations", ("annotations*",), "prefix"),
    Rule("hostAccess", ("envFrom[].prefix?",), "variable"),
)


def parse_policy(text: str) -> PlatformPolicy:
    """Return the policy in a YAML text. Raises SpecError, which lists every problem."""
    return parse_settings(text, PlatformPolicy)
