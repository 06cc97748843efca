"""The fields with which a tenant could reach more than its own namespace, and why some cannot."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from batchinference.spec.base import DNS_SUBDOMAIN, MEMORY
from batchinference.spec.quantities import NUMBER
from generators.crds import custom_resource_definition, schedule_definition

Schema = dict[str, Any]

SIZES = (NUMBER, MEMORY)
"""The patterns of numbers that may also be texts."""

WORDS = (
    *("account", "address", "allow", "annotation", "callable", "capabilities", "catalog", "claim"),
    *("class", "config", "container", "device", "directory", "endpoint", "env", "factory"),
    *("group", "header", "host", "image", "label", "managed", "mount", "namespace", "network"),
    *("node", "param", "patch", "path", "policy", "port", "priority", "privileged", "profile"),
    *("properties", "query", "queue", "ref", "region", "runtime", "secret", "security", "selector"),
    *("service", "socket", "source", "storage", "table", "taint", "toleration", "uri", "url"),
    *("user", "volume", "webhook"),
)
"""Words in the names of fields that name or embed something outside of the rows of a job."""
_WORD = re.compile(f"({'|'.join(WORDS)})(s|es)?")

OWN_NAMESPACE = "the name of an object in the namespace of the job"
OWN_POD = "a part of the job's own pods"
OWN_ACCESS = "the pods of the job access it, with the credentials and the network of the namespace"
OWN_CODE = "code and its arguments, which run in the pods of the job"
FIXED = "one of a few fixed values"
NODES = "chooses among the nodes whose taints the policy lets the pods tolerate"
OWN_PODS = "names pods in the namespace of the job"
COLUMNS = "columns, labels and values of the rows"
LIMITED = "counts for `defaults.limits.devices`, and the quota of the namespace limits it"
OWN_COST = "it changes only the cost that is shown for the job; policy.profiles: false forbids it"
LOWER = "can only lower the limit of the platform"
IGNORED = "the operator ignores a job of another controller"
CHECKED_RUN = "the policy checks each field of it as that of a job"
NO_OBJECT = "the operator reads no setting from it and copies it to no other object"

REASONS: dict[str, tuple[str, ...]] = {
    OWN_NAMESPACE: (
        *("cluster.imagePullSecrets[].name", "cluster.volumes[].persistentVolumeClaim.claimName"),
        *("cluster.volumes[].configMap.name", "cluster.volumes[].secret.secretName"),
        *("cluster.envFrom[].configMapRef.name", "cluster.envFrom[].secretRef.name"),
        *(
            f"cluster.{env}[].valueFrom.{kind}.{field}"
            for env in ("env", "profiles{}.env")
            for kind in ("secretKeyRef", "configMapKeyRef")
            for field in ("name", "key")
        ),
    ),
    OWN_POD: (
        "cluster.volumes[].name",
        *(
            f"cluster.volumeMounts[].{name}"
            for name in ("name", "mountPath", "subPath", "readOnly")
        ),
        *(
            f"cluster.volumes[].{kind}.{field}"
            for kind in ("configMap", "secret")
            for field in ("items[].path", "optional")
        ),
        "cluster.volumes[].persistentVolumeClaim.readOnly",
        *("cluster.fsGroup", "cluster.ephemeralStorage", "cluster.head.ephemeralStorage"),
        *("steps[].resources.ephemeralStorage", "cluster.profiles{}.idleTimeout"),
        *("cluster.env[].name", "cluster.env[].value"),
        *("cluster.profiles{}.env[].name", "cluster.profiles{}.env[].value"),
        *("cluster.profiles{}.device", "cluster.rayStartParams{}{}"),
    ),
    OWN_ACCESS: (
        *(
            f"{keys}.storage.{field}"
            for keys in ("read", "write", "steps[].model", "steps[].chunk", "steps[].cache")
            for field in ("endpoint", "region", "anonymous")
        ),
        *("read.table", "read.catalog.name", "read.catalog.properties{}", "write.apiKeyEnv"),
        *("read.paths[]", "read.path", "read.url", "read.urlEnv", "read.query"),
        *("read.options.allow[]", "read.options.config"),
        *("write.path", "write.url", "write.urlEnv", "write.table", "steps[].cache.path"),
        *("write.catalog.name", "write.catalog.properties{}", "errors.path"),
        *("steps[].model.source", "steps[].model.trustSource"),
        *("steps[].model.loraPath", "steps[].model.allow[]", "steps[].model.url"),
        *("steps[].model.apiKeyEnv", "steps[].model.headersFrom{}"),
    ),
    OWN_CODE: (
        *("steps[].python.callable", "steps[].python.constructorRefs{}"),
        *("steps[].python.constructorArgs", "steps[].python.callArgs"),
        *("steps[].model.factory", "steps[].model.factoryArgs", "steps[].model.options"),
        *("steps[].model.engine", "steps[].model.sampling", "steps[].model.body"),
        "steps[].model.chatTemplateArgs",
    ),
    FIXED: (
        *(
            "cluster.imagePullPolicy",
            "cluster.volumes[].image.pullPolicy",
            "steps[].model.runtime",
            "steps[].model.deviceMap",
            "steps[].replicasPerDevice",
            "steps[].resources.acceleratorType",
        ),
        "concurrencyPolicy",
    ),
    NODES: (*(f"cluster.{one}nodeSelector{{}}" for one in ("", "head.", "profiles{}.")),),
    OWN_PODS: (
        "cluster.topologySpreadConstraints[].labelSelector.matchLabels{}",
        *(
            f"cluster.affinity.{kind}.{term}DuringSchedulingIgnoredDuringExecution[].{keys}"
            "labelSelector.matchLabels{}"
            for kind in ("podAffinity", "podAntiAffinity")
            for term, keys in (("required", ""), ("preferred", "podAffinityTerm."))
        ),
    ),
    COLUMNS: (
        "steps[].model.requestUrl",
        *("read.items[]", "read.options.includePaths", "read.options.ignoreMissingPaths"),
        *("read.allowEmpty", "read.options.pathColumn"),
        *("steps[].labelFromPath.column", "steps[].labelFromPath.index"),
        *("steps[].model.images[]", "steps[].model.labels[]", "steps[].model.candidateLabels[]"),
        "steps[].model.schema.jsonSchema",
        "steps[].model.resultPath",
    ),
    LIMITED: ("cluster.profiles{}.resource", "cluster.profiles{}.resourceClaimTemplateName"),
    OWN_COST: ("cluster.profiles{}.deviceHour", "cluster.profiles{}.priceFactor"),
    LOWER: ("cluster.limits.devices", "cluster.limits.deviceHours"),
    IGNORED: ("managedBy",),
    CHECKED_RUN: ("template.spec",),
    NO_OBJECT: ("template.metadata.labels{}", "template.metadata.annotations{}"),
}
"""Why fields below `spec` are in no row of the table of docs/contributing/security-tests.md."""


def fields_of_tenants() -> set[str]:
    """Return the fields below `spec` of both definitions that name or embed something."""
    return {
        path.removeprefix("template.spec.")
        for definition in (custom_resource_definition(), schedule_definition())
        for path, schema in _leaves(_spec_of(definition), "")
        if _names_something(path, schema)
    }


def _spec_of(definition: Schema) -> Schema:
    root: Schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec: Schema = root["properties"]["spec"]
    return spec


def _leaves(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield each field without fields below it, or with any fields. `[]` is an item of a list, `{}`
    of a map."""
    if "x-kubernetes-preserve-unknown-fields" in schema:
        yield path, schema
        return
    fields = schema.get("properties", {}).items()
    below = [(f"{path}.{name}".strip("."), one) for name, one in fields]
    below += [(path + mark, schema[key]) for key, mark in _ITEMS.items() if key in schema]
    if not below:
        yield path, schema
    for inner, child in below:
        yield from _leaves(child, inner)


_ITEMS = {"items": "[]", "additionalProperties": "{}"}


def _names_something(path: str, schema: Schema) -> bool:
    """Return whether a field has any content, is the name of a Kubernetes object, or its name or
    the name of its parent has one of the WORDS."""
    if "x-kubernetes-preserve-unknown-fields" in schema and schema.get("pattern") not in SIZES:
        return True
    if schema.get("pattern") == DNS_SUBDOMAIN:
        return True
    names = re.sub(r"[\[\]{}]", "", path).split(".")[-2:]
    words = re.findall("[a-z]+", re.sub("([A-Z])", r"_\1", "_".join(names)).lower())
    return any(_WORD.fullmatch(word) for word in words)
