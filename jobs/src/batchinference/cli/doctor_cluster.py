"""Checks of `doctor` on the cluster of the kubeconfig: installed components and their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import metadata, util
from typing import Any
from urllib.parse import quote

import yaml

from batchinference.api.kubernetes import ClusterError, Kubernetes
from batchinference.cli.doctor_finding import Finding, Result
from batchinference.cli.doctor_versions import (
    check_fields,
    check_image,
    check_kuberay,
    check_local_ray,
    check_operator,
)
from batchinference.rendering.rayjob import RAY_VERSION
from batchinference.spec.crd_schema import structural_schema
from batchinference.spec.job import API_VERSION, KIND, BatchInferenceSpec
from batchinference.version import __version__

_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
_INSTALL = "Install the chart: docs/cluster-install.md"
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
    found = f"Kubernetes {version} at {cluster.host}, namespace {cluster.namespace}"
    yield Finding("cluster", Result.OK, found)
    yield _resources(cluster, "BatchInference", API_VERSION, _INSTALL)
    yield _resources(cluster, "KubeRay", "ray.io/v1", "Install the chart, which contains KubeRay")
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
        found = cluster.request("GET", f"/apis/{group}")["resources"]
    except ClusterError as error:
        return Finding(f"{name} resources", Result.NOTE, str(error), advice)
    names = ", ".join(sorted({each["name"] for each in found if "/" not in each["name"]}))
    return Finding(f"{name} resources", Result.OK, f"{group}: {names}")


def _fields(cluster: Kubernetes) -> Finding:
    """Compare the fields that BatchInferences have on the cluster with those of this program. They
    are read from the OpenAPI document, because not every user may read CRDs."""
    document = cluster.request("GET", f"/openapi/v3/apis/{API_VERSION}")
    schemas = document["components"]["schemas"].items()
    found = (schema for name, schema in schemas if name.endswith(f".{KIND}"))
    served: dict[str, Any] = next(found, {})
    spec = (served.get("properties") or {}).get("spec", {})
    schemas_of_spec = (spec, structural_schema(BatchInferenceSpec))
    return check_fields(*({"properties": {"spec": each}} for each in schemas_of_spec))


def _operator(cluster: Kubernetes, image: str | None) -> Iterator[Finding]:
    """Yield findings about the operator, its version, and the image of jobs."""
    found = _deployments(cluster, "batch-inference-operator")
    if not found:
        yield Finding("operator", Result.NOTE, "not found", _INSTALL)
        return
    about = found[0]["metadata"]
    deployment = f"{about['namespace']}/{about['name']}"
    ready = sum(each.get("status", {}).get("readyReplicas", 0) for each in found)
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
    """Return the default image of jobs; None if this user may not read it."""
    path = f"/api/v1/namespaces/{namespace}/configmaps/{operator}-defaults"
    try:
        defaults = yaml.safe_load(cluster.request("GET", path)["data"]["defaults.yaml"])
    except (ClusterError, KeyError, yaml.YAMLError):
        return None
    return str(defaults["image"]) if isinstance(defaults, dict) and "image" in defaults else None


def _kuberay(cluster: Kubernetes) -> Iterator[Finding]:
    found = _deployments(
        cluster, "kuberay-operator", "kuberay"
    )  # the names with Helm and Kustomize
    if not found:
        advice = "Install the chart, which contains KubeRay"
        yield Finding("KubeRay", Result.NOTE, "its operator was not found", advice)
    for each in found:
        yield check_kuberay(each["spec"]["template"]["spec"]["containers"][0]["image"])


def _deployments(cluster: Kubernetes, *names: str) -> list[dict[str, Any]]:
    """Return the Deployments of all namespaces whose name label is one of these names."""
    selector = quote(f"app.kubernetes.io/name in ({','.join(names)})", safe="")
    path = f"/apis/apps/v1/deployments?labelSelector={selector}"
    found: list[dict[str, Any]] = cluster.request("GET", path)["items"]
    return found


def _node_gpus(cluster: Kubernetes) -> Finding:
    nodes = cluster.request("GET", "/api/v1/nodes")["items"]
    counts: dict[str, int] = {}
    for node in nodes:
        for name, count in node.get("status", {}).get("allocatable", {}).items():
            if name in _GPUS:
                counts[name] = counts.get(name, 0) + int(count)
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    advice = "" if found else "Jobs with resources.gpu wait for a node with GPUs"
    result = Result.OK if found else Result.NOTE
    return Finding("GPUs of nodes", result, found or f"none on {len(nodes)} node(s)", advice)
