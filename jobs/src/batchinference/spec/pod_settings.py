"""Types of fields with the format of a Kubernetes pod: labels, environment, tolerations."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from batchinference.spec.base import (
    A_LABEL_KEY,
    DATA_KEY,
    DNS_SUBDOMAIN,
    ENV_NAME,
    LABEL_KEY,
    LABEL_VALUE,
    TAINT_KEY,
    SpecModel,
    invalid,
    keyed,
    required,
)

Image = Annotated[str, Field(min_length=1, max_length=512)]
ObjectName = Annotated[str, Field(pattern=DNS_SUBDOMAIN, max_length=253)]
DataKey = Annotated[str, Field(pattern=DATA_KEY, max_length=253)]
EnvName = Annotated[str, Field(pattern=ENV_NAME, max_length=128)]


MAX_PREFIX = 253
"""Maximum length of the domain before the slash of a label key."""


def _check_prefix(key: str) -> str:
    if (length := len(key.rpartition("/")[0])) > MAX_PREFIX:
        problem = f"the part before the slash has {length} characters"
        raise invalid(f"{problem}. Use at most {MAX_PREFIX}")
    return key


ShortPrefix = AfterValidator(_check_prefix)
"""Annotation of the key of a label or taint. Kubernetes would refuse pods with a longer prefix."""
LabelKey = Annotated[
    str,
    Field(max_length=316),
    required(re.compile(LABEL_KEY).fullmatch, f"expected {A_LABEL_KEY}"),
    ShortPrefix,
]
LabelValue = Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)]
NodeSelector = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
RESERVED_DOMAINS = ("batchinference.dev", "ray.io", "kueue.x-k8s.io", "app.kubernetes.io")
"""Domains of labels and annotations by which BatchInference, KubeRay and Kueue select objects."""
_RESERVED_KEY = "belongs to BatchInference, KubeRay or Kueue. Remove it"
_QUEUE = "kueue.x-k8s.io/queue-name"


def _check_own_keys(values: dict[str, str]) -> dict[str, str]:
    for key in values:
        if key.partition("/")[0] in RESERVED_DOMAINS:
            instead = ", and set cluster.queueName" if key == _QUEUE else ""
            raise invalid(f"'{key}' {_RESERVED_KEY}{instead}")
    return values


Labels = Annotated[
    dict[LabelKey, LabelValue], Field(max_length=32), AfterValidator(_check_own_keys)
]
Annotations = Annotated[
    dict[LabelKey, Annotated[str, Field(max_length=4096)]],
    Field(max_length=32),
    AfterValidator(_check_own_keys),
]
DEVICE_VARIABLES = (
    *(f"{vendor}_VISIBLE_DEVICES" for vendor in ("NVIDIA", "ASCEND", "AMD", "HABANA", "MTHREADS")),
    *(f"NVIDIA_MIG_{kind}_DEVICES" for kind in ("CONFIG", "MONITOR")),
    *(f"NVIDIA_{kind}" for kind in ("IMEX_CHANNELS", "GDRCOPY", "GDS", "MOFED", "NVSWITCH")),
)
"""Environment variables that give a container devices of its node without a request."""
RESERVED_NAMES = (
    "^(RAY_AUTH_.*|RAY_ENABLE_K8S_TOKEN_AUTH|RAY_ADDRESS|RAY_TMPDIR|RAY_DATA_AUTOLOAD_.*|"
    "RAY_JOB_.*|RAY_CLUSTER_NAME|RAY_CLUSTER_NAMESPACE|RAY_CLOUD_INSTANCE_ID|RAY_NODE_TYPE_NAME|"
    "RAY_IP|FQ_RAY_IP|RAY_PORT|RAY_enable_autoscaler_v2|KUBERAY_.*|BATCHINFERENCE_JOB_.*|"
    "BATCHINFERENCE_PLAN_.*|BATCHINFERENCE_NODE|BATCHINFERENCE_END_FILE|"
    f"{'|'.join(DEVICE_VARIABLES)})$"
)
"""Matches environment variables that jobs cannot set. Some are set by KubeRay, the operator or a
device plugin. Others disable Ray's authentication or protection against pickled input."""
_RESERVED = "is reserved for Ray, KubeRay, device plugins and the operator. Remove it"
_RESERVED_PREFIXES = ("RAY_", "KUBERAY_", "BATCHINFERENCE_JOB_")
_RESERVED_PREFIX = (
    "with the prefix '{prefix}', the keys could be variables of Ray, KubeRay or the operator: "
    "choose another"
)


class NamedRef(SpecModel):
    name: ObjectName
    """The name of the object."""


class KeyRef(SpecModel):
    name: ObjectName
    """The name of the object."""
    key: DataKey
    """The key in the object."""


class EnvSource(SpecModel):
    """The source of the value: exactly one of `secretKeyRef` and `configMapKeyRef`."""

    secret_key_ref: KeyRef | None = None
    """A key of a Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of a ConfigMap."""

    def _check(self) -> None:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise invalid("give exactly one of secretKeyRef and configMapKeyRef")


class EnvVar(SpecModel):
    name: EnvName
    """The name of the variable."""
    value: Annotated[str, Field(max_length=4096)] | None = None
    """The value. Do not put secrets here: use `valueFrom` with a Secret."""
    value_from: EnvSource | None = None
    """A Secret or ConfigMap with the value."""

    def _check(self) -> None:
        if (self.value is None) == (self.value_from is None):
            raise invalid("give exactly one of value and valueFrom")
        if re.match(RESERVED_NAMES, self.name):
            raise invalid(f"'{self.name}' {_RESERVED}")


Environment = Annotated[list[EnvVar], *keyed("name", 64)]


class EnvFrom(SpecModel):
    """A ConfigMap or a Secret. Each of its keys becomes a variable."""

    prefix: Annotated[str, Field(pattern=ENV_NAME, max_length=128)] | None = None
    """The text before each key in the name of its variable. The platform may require a prefix."""
    secret_ref: NamedRef | None = None
    """A Secret."""
    config_map_ref: NamedRef | None = None
    """A ConfigMap."""

    def _check(self) -> None:
        if (self.secret_ref is None) == (self.config_map_ref is None):
            raise invalid("give exactly one of secretRef and configMapRef")
        prefix = self.prefix or "-"
        if any(each.startswith((prefix, prefix[: len(each)])) for each in _RESERVED_PREFIXES):
            raise invalid(_RESERVED_PREFIX.format(prefix=prefix))


class Toleration(SpecModel):
    """A taint that pods tolerate."""

    key: Annotated[str, Field(pattern=TAINT_KEY, max_length=316), ShortPrefix] | None = None
    """The key of the taint. If absent, all keys match, and `operator` must be `Exists`."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """`Equal`: the taint must have the key and the value. `Exists`: it needs only the key."""
    value: LabelValue | None = None
    """The value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The effect of the taint. If absent, all effects match."""
    toleration_seconds: Annotated[int, Field(ge=0, le=10**9)] | None = None
    """How many seconds pods tolerate a NoExecute taint. By default, there is no limit."""

    def _check(self) -> None:
        # the API server would reject pods with such a toleration, long after it accepted the job
        if not self.key and self.operator != "Exists":
            raise invalid("without a key, operator must be Exists")
        if self.value and self.operator == "Exists":
            raise invalid("'value' is for operator Equal")
        if self.toleration_seconds is not None and self.effect != "NoExecute":
            raise invalid("'tolerationSeconds' is for effect NoExecute")
