"""The values of docs/platforms.md render pods that the platforms accept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from batchinference import __version__
from batchinference.rendering.names import running_containers
from batchinference.rendering.policy import PlatformPolicy
from batchinference.spec import parse_defaults
from chart.value_sets import BATCH_SERVICE
from support.cluster.chart import NAMESPACE, Chart, defaults_map
from support.documents.minimal import model_step
from support.documents.pages import ROOT, blocks
from support.documents.parsed import job
from support.operator.rendered import Rendered, render

Object = dict[str, Any]

PAGE = "docs/platforms.md"
VALUES = {
    text.partition("\n")[0].strip("# "): yaml.safe_load(text) for text in blocks(PAGE, "yaml")
}
PLATFORMS = {"OpenShift": {}, "batch service": {"batchService": BATCH_SERVICE}, **VALUES}
RESTRICTED_V2_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image"),
    *("persistentVolumeClaim", "projected", "secret"),
}
"""Kinds of volumes of the SecurityContextConstraint `restricted-v2`."""


def rendered(chart: Chart, values: Object) -> Rendered:
    """Return the objects of a job on CPUs and on each type of GPU of the values."""
    defaults = parse_defaults(defaults_map(chart.manifests(values))["data"]["defaults.yaml"])
    types = [name for name in defaults.profiles if name != "GPU"]
    asked = [{"gpu": 1}, *({"gpu": 1, "acceleratorType": name} for name in types)]
    steps = [model_step(f"step-{number}", resources=each) for number, each in enumerate(asked)]
    return render(job(steps=steps), defaults)


def pods(chart: Chart, values: Object) -> Iterator[Object]:
    """Yield the specs of all pods of the chart and of a job."""
    for manifest in chart.manifests(values):
        if manifest["kind"] in ("Deployment", "Pod"):
            yield manifest["spec"].get("template", manifest)["spec"]
    yield from (pod["spec"] for pod in rendered(chart, values).pods)


def ray(pod: Object) -> Object:
    body: Object = pod["spec"]["containers"][0]
    return body


@pytest.mark.parametrize("name", PLATFORMS)
def test_pods_meet_restricted_v2_of_openshift(chart: Chart, name: str) -> None:
    """OpenShift chooses the user and the groups, and refuses pods that name others."""
    pods_of_all = list(pods(chart, PLATFORMS[name]))
    assert len(pods_of_all) >= 5  # the operator, its test, a head and two groups of workers
    for pod in pods_of_all:
        context = pod.get("securityContext", {})
        named = {"runAsUser", "runAsGroup", "supplementalGroups", "fsGroup"} & context.keys()
        assert named == ({"fsGroup"} if "fsGroup" in str(PLATFORMS[name]) and named else set())
        assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(pod)
        kinds = {kind for volume in pod.get("volumes", []) for kind in volume}
        assert kinds - {"name"} <= RESTRICTED_V2_VOLUMES
        for each in running_containers(pod):
            own = each["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert {"runAsUser", "runAsGroup", "privileged"}.isdisjoint(own)
            assert (context | own)["seccompProfile"] == {"type": "RuntimeDefault"}
            assert (context | own)["runAsNonRoot"] is True


def test_images_run_as_any_user_of_openshift() -> None:
    for name in ("operator", "pipeline"):
        text = (ROOT / f"images/{name}/Dockerfile").read_text()
        assert re.findall(r"^USER (\d+)", text, re.M)[-1:] not in ([], ["0"])
    assert "chown 1000:0 /home/ray && chmod 770 /home/ray" in text


@pytest.mark.parametrize("name", PLATFORMS)
def test_no_object_is_in_a_namespace_of_the_cluster(chart: Chart, name: str) -> None:
    """GKE Autopilot refuses writes in `kube-system`."""
    manifests = chart.manifests(PLATFORMS[name])
    assert {one["metadata"].get("namespace", NAMESPACE) for one in manifests} == {NAMESPACE}
    assert "kube-system" not in str([one for one in manifests if one["kind"] == "Deployment"])


def test_pods_on_autopilot_request_disk_space_and_their_gpus(chart: Chart) -> None:
    made = rendered(chart, VALUES["GKE Autopilot"])
    for pod in made.pods:
        resources = ray(pod)["resources"]
        assert resources["requests"] == resources["limits"]
        assert resources["requests"]["ephemeral-storage"] == "10Gi"
    *_, gpus = made.pods
    assert gpus["spec"]["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert ray(gpus)["resources"]["limits"]["nvidia.com/gpu"] == "1"


@pytest.mark.parametrize(
    ("name", "label", "taints"),
    [
        ("EKS", "karpenter.k8s.aws/instance-gpu-name", {"nvidia.com/gpu"}),
        ("AKS", "kubernetes.azure.com/agentpool", {"nvidia.com/gpu", "sku"}),
    ],
)
def test_workers_run_on_the_gpu_nodes_of_eks_and_aks(
    chart: Chart, name: str, label: str, taints: set[str]
) -> None:
    head, cpu, *_, gpus = rendered(chart, VALUES[name]).pods
    assert gpus["spec"]["nodeSelector"] == {label: "a100"}
    assert {one["key"] for one in gpus["spec"]["tolerations"]} == taints
    assert all("tolerations" not in pod["spec"] for pod in (head, cpu))


def test_pods_have_the_identity_of_the_cloud_without_patches(chart: Chart) -> None:
    for pod in rendered(chart, VALUES["workload identity"]).pods:
        assert pod["spec"]["serviceAccountName"] == "batch-jobs"
        assert pod["metadata"]["labels"]["azure.workload.identity/use"] == "true"
        assert pod["spec"]["automountServiceAccountToken"] is False  # the clouds add their own


def test_containers_that_leave_the_cluster_have_the_proxy_and_the_certificates(
    chart: Chart,
) -> None:
    """KubeRay's init container copies both from the container of Ray."""
    values = VALUES["proxy and certificates"]
    made = rendered(chart, values)
    for pod in made.pods:
        assert [one for one in values["defaults"]["env"] if one not in ray(pod)["env"]] == []
        assert values["defaults"]["volumeMounts"][0] in ray(pod)["volumeMounts"]
        assert values["defaults"]["volumes"][0] in pod["spec"]["volumes"]
    # a volume of a job could change the program that may change pods
    autoscaler = made.cluster["autoscalerOptions"]
    assert {"env", "envFrom"}.isdisjoint(autoscaler)
    assert [mount["name"] for mount in autoscaler["volumeMounts"]] == ["batchinference-kube-api"]
    bypassed = {one["name"]: one.get("value", "") for one in values["defaults"]["env"]}["NO_PROXY"]
    assert {"localhost", "127.0.0.1", ".svc", ".cluster.local"} <= set(bypassed.split(","))


def test_all_images_come_from_the_registry_without_access_to_the_internet(chart: Chart) -> None:
    values = VALUES["without access to the internet"]
    listed = set(re.findall(r"^\| `([^`]+:[^`]+)` \|", (ROOT / PAGE).read_text(), re.M))
    own = {name for name in listed if "kuberay" not in name}
    assert {tag.partition(":")[2].partition("-")[0] for tag in own} == {__version__}
    registry = values["global"]["imageRegistry"]
    # KubeRay runs the autoscaler with the image of the head
    used = {each["image"] for pod in pods(chart, values) for each in pod["containers"]}
    assert used <= {f"{registry}/{name}" for name in own}
    (kuberay,) = listed - own
    image = values["kuberay-operator"]["image"]
    assert f"{image['repository']}:{image['tag']}" == f"{registry}/{kuberay.partition('/')[2]}"
    version = yaml.safe_load((ROOT / "charts/batch-inference-operator/Chart.yaml").read_text())
    assert image["tag"].lstrip("v") == version["dependencies"][0]["version"]
    assert PlatformPolicy.model_validate(values["policy"]).images == [f"{registry}/"]


def test_pods_share_a_cache_of_models_that_they_can_write(chart: Chart) -> None:
    values = VALUES["a cache of models"]
    for pod in rendered(chart, values).pods:
        (mount,) = (one for one in ray(pod)["volumeMounts"] if one["name"] == "models")
        assert "readOnly" not in mount
        assert pod["spec"]["securityContext"]["fsGroup"] == 1000
        variables = {one["name"]: one.get("value", "") for one in ray(pod)["env"]}
        for name in ("BATCHINFERENCE_CACHE", "HF_HOME"):
            assert variables[name].startswith(f"{mount['mountPath']}/")
