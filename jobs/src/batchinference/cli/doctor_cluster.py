"""Checks of `doctor` on the cluster of the kubeconfig. They find the installed components, and
compare the versions of the client, the operator, the CRD, KubeRay and Ray."""

import re
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata, util
from typing import Any
from urllib.parse import quote

import yaml

from batchinference.api.cluster_error import ClusterError
from batchinference.api.kubernetes import Kubernetes
from batchinference.cli.doctor_finding import Finding, Result
from batchinference.rendering.rayjob import RAY_API_VERSION, RAY_VERSION
from batchinference.spec.crd_schema import structural_schema
from batchinference.spec.job import API_VERSION, KIND, BatchInferenceSpec
from batchinference.version import __version__

KUBERAY = ((1, 6), (1, 7))
"""The tested versions of KubeRay. RayJobs of these versions have all fields that the operator
writes. Jobs need at least the first version."""
SHOWN_FIELDS = 5
"""Maximum number of fields that a finding names."""
_VERSION = re.compile(r"(?<![\d.])(\d+)\.(\d+)")
_UPGRADE = "Upgrade the chart: docs/upgrades.md"


def version_of(text: str) -> tuple[int, int] | None:
    """Return the major and minor version in a text such as `v1.6.2`; None if there is none."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2])) if match else None


def tag_of(image: str) -> str:
    """Return the tag of an image; empty if it has none."""
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def check_operator(operator: str, client: str) -> Finding:
    """Return a finding: whether the operator has the major and minor version of this program."""
    name, text = "operator version", f"{operator or 'unknown'}, this program {client}"
    theirs, ours = version_of(operator), version_of(client)
    if theirs is None or theirs == ours:
        return Finding(name, Result.OK, text)
    if ours is None or theirs > ours:
        fix = f"Install version {operator} of this program, or it may refuse fields of newer jobs"
        return Finding(name, Result.NOTE, text, fix)
    fix = f"{_UPGRADE}. Until then, the operator may not know fields of your jobs"
    return Finding(name, Result.NOTE, text, fix)


def check_fields(served: dict[str, Any], known: dict[str, Any]) -> Finding:
    """Return a finding: the fields of BatchInferences that only the cluster or only this program
    knows. `served` is the OpenAPI schema of the cluster, `known` the schema of this program."""
    name, theirs, ours = "CRD version", set(fields_of(served)), set(fields_of(known))
    if missing := ours - theirs:
        text = f"the cluster does not know {_shown(missing)}"
        return Finding(name, Result.NOTE, text, f"{_UPGRADE}. Jobs with these fields are refused")
    if extra := theirs - ours:
        text = f"this program does not know {_shown(extra)}"
        return Finding(name, Result.NOTE, text, "Install the version of the operator")
    return Finding(name, Result.OK, "the cluster and this program know the same fields")


def fields_of(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of all fields of a schema."""
    for name, child in (schema.get("properties") or {}).items():
        field = f"{path}.{name}" if path else name
        yield field
        yield from fields_of(child, field)
    for inner, mark in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(child := schema.get(inner), dict):
            yield from fields_of(child, f"{path}{mark}")


def _shown(fields: set[str]) -> str:
    """Return the first SHOWN_FIELDS fields as text. Leave out fields below other `fields`."""
    ordered = sorted(fields)
    parents = {field: field.rpartition(".")[0] for field in ordered}
    top = [f for f in ordered if parents[f].removesuffix("[]").removesuffix(".*") not in fields]
    more = f" and {len(top) - SHOWN_FIELDS} more field(s)" if len(top) > SHOWN_FIELDS else ""
    return ", ".join(top[:SHOWN_FIELDS]) + more


def check_kuberay(image: str) -> Finding:
    """Return a finding: whether the tag of this image of KubeRay is a tested version."""
    version, tested = version_of(tag_of(image)), [f"{major}.{minor}" for major, minor in KUBERAY]
    if version in KUBERAY:
        return Finding("KubeRay", Result.OK, image)
    if version is not None and version < KUBERAY[0]:
        fix = f"Jobs need KubeRay {tested[0]}. Upgrade it: docs/upgrades.md#kuberay"
        return Finding("KubeRay", Result.NOTE, image, fix)
    unknown = "unknown version: " if version is None else ""
    advice = f"It is not tested. Tested: {', '.join(tested)}"
    return Finding("KubeRay", Result.NOTE, f"{unknown}{image}", advice)


def check_image(image: str, operator: str, ray: str) -> Finding:
    """Return a finding: whether the tag of the image of jobs is the version of the operator. `ray`
    is the version of Ray that the image must contain."""
    name, version, needed = "image of jobs", version_of(tag_of(image)), version_of(operator)
    if version is not None and version == needed:
        return Finding(name, Result.OK, f"{image}, with Ray {ray}")
    text = f"{image}; the operator has version {operator or 'unknown'}"
    fix = f"Make sure that it contains Ray {ray} and the version of the operator"
    return Finding(name, Result.NOTE, text, f"{fix}: cluster.image, or defaults.image")


def check_local_ray(local: str, ray: str) -> Finding:
    """Return a finding: whether this machine and clusters have the same version of Ray."""
    text = f"{local} on this machine, {ray} in clusters"
    if version_of(local) == version_of(ray):
        return Finding("Ray versions", Result.OK, text)
    fix = f"Install ray=={ray}, so that jobs behave here as in clusters"
    return Finding("Ray versions", Result.NOTE, text, fix)


_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
_INSTALL = "Install the chart: docs/cluster-install.md"
_INSTALL_KUBERAY = "Install the chart, which contains KubeRay"
_ASK = "Ask an administrator of the cluster"
_VERSION_LABEL = "app.kubernetes.io/version"


def check_cluster(
    namespace: str | None, context: str | None, image: str | None
) -> Iterator[Finding]:
    """Yield findings about the components of the cluster and their versions. `image` is the image
    of a job; None for the default of the operator."""
    try:
        cluster = Kubernetes(namespace, context)
        version = cluster.request("GET", "/version")["gitVersion"]
    except ClusterError as error:
        yield Finding("cluster", Result.NOTE, str(error))
        return
    text = f"Kubernetes {version} at {cluster.host}, namespace {cluster.namespace}"
    yield Finding("cluster", Result.OK, text)
    yield _resources(cluster, "BatchInference", API_VERSION, _INSTALL)
    yield _resources(cluster, "KubeRay", RAY_API_VERSION, _INSTALL_KUBERAY)
    yield from _check_or_note("CRD version", lambda: [_fields(cluster)])
    yield from _check_or_note("operator", lambda: _operator(cluster, image))
    yield from _check_or_note("KubeRay", lambda: _kuberay(cluster))
    yield from _check_or_note("GPUs of nodes", lambda: [_node_gpus(cluster)])
    if util.find_spec("ray") is not None:
        yield check_local_ray(metadata.version("ray"), RAY_VERSION)


def _check_or_note(name: str, check: Callable[[], Iterable[Finding]]) -> Iterable[Finding]:
    try:
        return list(check())
    except ClusterError as error:
        return [Finding(name, Result.NOTE, str(error), _ASK)]


def _resources(cluster: Kubernetes, name: str, group: str, advice: str) -> Finding:
    try:
        items = cluster.request("GET", f"/apis/{group}")["resources"]
    except ClusterError as error:
        return Finding(f"{name} resources", Result.NOTE, str(error), advice)
    names = ", ".join(sorted({each["name"] for each in items if "/" not in each["name"]}))
    return Finding(f"{name} resources", Result.OK, f"{group}: {names}")


def _fields(cluster: Kubernetes) -> Finding:
    """Return the finding of `check_fields`. The schema comes from the OpenAPI document of the
    cluster, because not every user may read CustomResourceDefinitions."""
    document = cluster.request("GET", f"/openapi/v3/apis/{API_VERSION}")
    schemas = document["components"]["schemas"].items()
    matches = (schema for name, schema in schemas if name.endswith(f".{KIND}"))
    served: dict[str, Any] = next(matches, {})
    spec = (served.get("properties") or {}).get("spec", {})
    schemas_of_spec = (spec, structural_schema(BatchInferenceSpec))
    return check_fields(*({"properties": {"spec": each}} for each in schemas_of_spec))


def _operator(cluster: Kubernetes, image: str | None) -> Iterator[Finding]:
    deployments = _deployments(cluster, "batch-inference-operator")
    if not deployments:
        yield Finding("operator", Result.NOTE, "not found", _INSTALL)
        return
    about = deployments[0]["metadata"]
    deployment = f"{about['namespace']}/{about['name']}"
    ready = sum(each.get("status", {}).get("readyReplicas", 0) for each in deployments)
    if ready:
        yield Finding("operator", Result.OK, f"{deployment}, {ready} replica(s) ready")
    else:
        yield Finding("operator", Result.NOTE, f"{deployment} is not ready", "See its pods and log")
    version = (about.get("labels") or {}).get(_VERSION_LABEL, "")
    yield check_operator(version, __version__)
    image = image or _default_image(cluster, about["namespace"], about["name"])
    if image is not None:
        yield check_image(image, version, RAY_VERSION)


def _default_image(cluster: Kubernetes, namespace: str, operator: str) -> str | None:
    """Return the default image of jobs; None if it is not set or cannot be read."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{operator}-defaults"
    try:
        defaults = yaml.safe_load(cluster.request("GET", path)["data"]["defaults.yaml"])
    except (ClusterError, KeyError, yaml.YAMLError):
        return None
    return str(defaults["image"]) if isinstance(defaults, dict) and "image" in defaults else None


def _kuberay(cluster: Kubernetes) -> Iterator[Finding]:
    # the name label in KubeRay's Helm chart, and in its Kustomize files
    deployments = _deployments(cluster, "kuberay-operator", "kuberay")
    if not deployments:
        yield Finding("KubeRay", Result.NOTE, "its operator was not found", _INSTALL_KUBERAY)
    for each in deployments:
        yield check_kuberay(each["spec"]["template"]["spec"]["containers"][0]["image"])


def _deployments(cluster: Kubernetes, *names: str) -> list[dict[str, Any]]:
    """Return the Deployments in all namespaces whose name label is in `names`."""
    selector = quote(f"app.kubernetes.io/name in ({','.join(names)})", safe="")
    path = f"/apis/apps/v1/deployments?labelSelector={selector}"
    items: list[dict[str, Any]] = cluster.request("GET", path)["items"]
    return items


def _node_gpus(cluster: Kubernetes) -> Finding:
    nodes = cluster.request("GET", "/api/v1/nodes")["items"]
    counts: dict[str, int] = {}
    for node in nodes:
        for name, count in node.get("status", {}).get("allocatable", {}).items():
            if name in _GPUS:
                counts[name] = counts.get(name, 0) + int(count)
    text = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    advice = "" if text else "Jobs with resources.gpu wait for a node with GPUs"
    result = Result.OK if text else Result.NOTE
    return Finding("GPUs of nodes", result, text or f"none on {len(nodes)} node(s)", advice)
