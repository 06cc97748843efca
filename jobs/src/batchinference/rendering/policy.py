"""Checks the settings of a job against the policy of the platform.

The platform's own defaults are not checked. The API server checks the same rules in CEL, which
`make generate` makes from RULES."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel, to_snake

from batchinference.spec.base import IMAGE_PREFIX, WEBHOOK_PREFIX, invalid
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.pod_settings import DEVICE_VARIABLES
from batchinference.spec.problems import Problem
from batchinference.spec.yaml_documents import parse_settings

Name = Annotated[str, Field(min_length=1, max_length=316)]
Names = Annotated[list[Name], Field(max_length=64)]
ImagePrefix = Annotated[str, Field(pattern=IMAGE_PREFIX, max_length=512)]
"""A registry or a repository. It has a slash, because the prefix `registry.example` would also
match `registry.example.attacker.example`."""
WebhookPrefix = Annotated[str, Field(pattern=WEBHOOK_PREFIX, max_length=512)]
"""A URL that ends with a slash, because `https://example.com` would also match
`https://example.com.attacker.example`."""


def _true_or_list(value: object) -> object:
    """Return the value of a policy. Raises a validation error unless it is true or a list."""
    if value is True or isinstance(value, list):
        return value
    written = f"[{value}]" if isinstance(value, str) else "[], which allows none"
    raise invalid(f"expected true or a list. Write {written}")


Allowed = Annotated[Literal[True] | Names, BeforeValidator(_true_or_list)]
RESTRICTED_VOLUMES = (
    *("persistentVolumeClaim", "configMap", "secret", "emptyDir", "ephemeral", "csi", "image"),
)
"""The kinds of volumes that the Pod Security Standard `restricted` allows in a job."""
SAFE_ANNOTATIONS = (
    *("cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"),
    *("prometheus.io/", "gke-gcsfuse/", "sidecar.istio.io/inject"),
)
"""Annotations that do not control a container runtime or a network. One controls a service mesh:
`sidecar.istio.io/inject` decides whether Istio adds its proxy."""
NONE = "none"
Compare = Literal["name", "kind", "prefix", "image", "any", "variable", "maximum", "if_listed"]


class PlatformPolicy(BaseModel):
    """The chart value `policy`. Of most fields, true allows all values, a list only the listed
    values."""

    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", frozen=True, strict=True, populate_by_name=True
    )

    volumes: Allowed = list(RESTRICTED_VOLUMES)
    """Kinds of volumes."""
    images: Annotated[
        Literal[True] | Annotated[list[ImagePrefix], Field(max_length=64)],
        BeforeValidator(_true_or_list),
    ] = True
    """Registries and repositories of images."""
    service_accounts: Allowed = True
    """Names of ServiceAccounts."""
    priority_classes: Allowed = True
    """Names of PriorityClasses."""
    queues: Allowed = True
    """Names of LocalQueues of Kueue."""
    queue_priority_classes: Allowed = True
    """Names of WorkloadPriorityClasses of Kueue."""
    runtime_classes: Allowed = True
    """Names of RuntimeClasses."""
    schedulers: Allowed = True
    """Names of schedulers."""
    tolerations: Allowed = True
    """Keys of taints."""
    profiles: bool = True
    """Whether jobs may define or change profiles."""
    labels: Allowed = True
    """Keys of labels. An entry that ends in `/` allows all keys that begin with it."""
    annotations: Allowed = list(SAFE_ANNOTATIONS)
    """Keys of annotations. An entry that ends in `/` allows all keys that begin with it."""
    max_priority: Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)] = 1_000_000_000
    """Maximum `spec.priority`."""
    host_access: bool = False
    """Whether `envFrom` may set variables with which a pod gets devices without a request."""

    notifications: Annotated[list[WebhookPrefix], Field(max_length=64)] = []
    """URLs below which the operator sends notifications. If empty, jobs cannot have any."""

    def check_spec(self, spec: BatchInferenceSpec) -> list[Problem]:
        """Return the problems with the spec of a job, before the defaults are merged."""
        limited = {"cluster", "notifications", "priority"}
        fields = spec.model_dump(by_alias=True, exclude_none=True, include=limited)
        return [problem for rule in RULES for problem in rule.check(self, fields)]


@dataclass(frozen=True)
class Rule:
    """A rule of the policy, which checks the values at some paths. In a path, `[]` stands for each
    item of a list, and `{}` for each value of a mapping. `*` stands for each key of a mapping, such
    as the kind of a volume. If a path ends in `?` and its field is missing, the value is an empty
    string. In the generated CEL, it is 0 for a number."""

    policy: str
    """The name of the chart value below `policy`."""
    paths: tuple[str, ...]
    """Paths of fields below `spec`."""
    compare: Compare = "name"
    """Which values are allowed:

    - `name`: a listed value
    - `kind`: a listed value, or the key `name`
    - `prefix`: a listed value, or a value that begins with a listed prefix that ends in `/`
    - `image`: an image in a listed registry or repository
    - `any`: none, so each value is a problem
    - `variable`: a prefix with which none of DEVICE_VARIABLES begins
    - `maximum`: a number up to the value of the policy
    - `if_listed`: an empty list. If the policy lists a value, any list: the operator checks the
      items when it uses them"""

    @cached_property
    def parts(self) -> list[list[str]]:
        """The parts of each path."""
        return [re.findall(r"\[\]|\{\}|\*|\w+[?]?", path) for path in self.paths]

    def check(self, policy: PlatformPolicy, fields: dict[str, Any]) -> Iterator[Problem]:
        """Yield a problem for each value that the policy does not allow."""
        allowed = getattr(policy, to_snake(self.policy))
        if allowed is True:
            return
        listed = isinstance(allowed, list)
        refusal = self.refusal(", ".join(allowed) or NONE if listed else str(allowed).lower())
        for path, value in (each for parts in self.parts for each in _find(fields, parts, "spec")):
            if not self._allows(allowed, value):
                shown = {str: f"'{value}'", int: str(value)}.get(type(value), "it")
                yield Problem(path, f"{shown} {refusal}")

    def refusal(self, allowed: str) -> str:
        """Return the end of the message about a value that the rule does not allow."""
        if self.compare == "maximum":
            return f"is above policy.{self.policy} ({allowed}). Lower it"
        return not_allowed(self.policy, allowed)

    def _allows(self, allowed: Any, value: Any) -> bool:
        match self.compare:
            case "any":
                return False
            case "variable":
                return not any(name.startswith(value) for name in DEVICE_VARIABLES)
            case "maximum":
                return bool(value <= allowed)
            case "if_listed":
                return not value or bool(allowed)
            case "prefix":
                begins = [name for name in allowed if name.endswith("/")]
                return value in allowed or value.startswith(tuple(begins))
            case "image":
                begins = [n if n.endswith("/") else f"{n}{end}" for n in allowed for end in "/:@"]
                return value in allowed or value.startswith(tuple(begins))
        return value in allowed or (self.compare == "kind" and value == "name")


def not_allowed(policy: str, allowed: str) -> str:
    """Return the end of the message about a value that `policy.POLICY` does not allow."""
    fix = "Change or remove it, or ask the platform team"
    return f"is not allowed by the platform (policy.{policy}: {allowed}). {fix}"


def _find(value: Any, parts: list[str], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each field that the parts of a path match."""
    if not parts:
        yield path, value
    for name, child in _children(value, parts[0]) if parts else ():
        yield from _find(child, parts[1:], f"{path}{name}")


def _children(value: Any, part: str) -> list[tuple[str, Any]]:
    """Return the path suffix and the value of each child; empty if `part` expects another type."""
    if part == "[]":
        items = value if isinstance(value, list) else []
        return [(f"[{index}]", item) for index, item in enumerate(items)]
    if not isinstance(value, dict):
        return []
    if part == "{}":
        return [(f".{name}", child) for name, child in value.items()]
    if part == "*":
        return [(f".{name}", name) for name in value]
    name = part.rstrip("?")
    child = value.get(name)
    if child is None and part == name:
        return []
    return [(f".{name}", "" if child is None else child)]


_IMAGES = ("cluster.image", "cluster.profiles{}.image", "cluster.volumes[].image.reference")
_TOLERATING = ("cluster", "cluster.head", "cluster.profiles{}")
RULES = (
    Rule("volumes", ("cluster.volumes[]*",), "kind"),
    Rule("images", _IMAGES, "image"),
    Rule("serviceAccounts", ("cluster.serviceAccountName",)),
    Rule("priorityClasses", ("cluster.priorityClassName",)),
    Rule("queues", ("cluster.queueName",)),
    Rule("queuePriorityClasses", ("cluster.queuePriorityClassName",)),
    Rule("runtimeClasses", ("cluster.profiles{}.runtimeClassName",)),
    Rule("schedulers", ("cluster.schedulerName",)),
    Rule("tolerations", tuple(f"{at}.tolerations[].key?" for at in _TOLERATING)),
    Rule("profiles", ("cluster.profiles{}",), "any"),
    Rule("labels", ("cluster.labels*",), "prefix"),
    Rule("annotations", ("cluster.annotations*",), "prefix"),
    Rule("hostAccess", ("cluster.envFrom[].prefix?",), "variable"),
    Rule("maxPriority", ("priority?",), "maximum"),
    Rule("notifications", ("notifications",), "if_listed"),
)


def parse_policy(text: str) -> PlatformPolicy:
    """Return the policy in a YAML text. Raises SpecError with every problem."""
    return parse_settings(text, PlatformPolicy)
