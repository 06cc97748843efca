"""Each value has an effect, and invalid values are refused before an installation."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import yaml

from batchinference.spec.platform_defaults import PlatformDefaults
from chart.value_sets import SETS
from support.cluster.chart import WITH_CRDS, Chart, one
from support.cluster.deployment import CHART
from support.documents.yaml_files import read_yaml

Object = dict[str, Any]

VALUES = read_yaml(CHART / "values.yaml")
KUBERAY = "kuberay-operator"
OWN = {name: value for name, value in VALUES.items() if name != KUBERAY}
"""The values without the values of KubeRay's chart."""
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
FREE = {"defaults", "resources", "podSecurityContext", "securityContext", "commonLabels"}
FREE |= {"livenessProbe", "readinessProbe", "affinity", "nodeSelector", "podAnnotations"}
FREE |= {"podLabels", "deploymentAnnotations", "extraPodSpec", "crds.annotations"}
FREE |= {"batchService.resources", "batchService.serviceAccountAnnotations"}
FREE |= {f"metrics.{name}.labels" for name in ("podMonitor", "serviceMonitor", "prometheusRule")}
FREE |= {"metrics.dashboard.labels", "metrics.dashboard.annotations"}
FREE |= {"serviceAccount.annotations", "metrics.service.annotations"}
"""Values that are objects of Kubernetes or of the user, with arbitrary fields."""

SHOWN: dict[str, tuple[Any, str]] = {
    "global.imageRegistry": ("m.example/m/", "image: m.example/m/registry.example/m-repository:"),
    "nameOverride": ("m-name", "m-name"),
    "commonLabels": ({"m-common": "yes"}, "m-common: 'yes'"),
    "image.repository": ("registry.example/m-repository", "registry.example/m-repository:"),
    "image.tag": ("m-tag", ":m-tag"),
    "image.pullPolicy": ("Always", "imagePullPolicy: Always"),
    "imagePullSecrets": ([{"name": "m-pull"}], "name: m-pull"),
    "replicas": (5, "replicas: 5"),
    "leaderElection.namespace": ("m-leader", "namespace: m-leader"),
    "defaults": ({"image": "m-default"}, "image: m-default"),
    **{
        f"policy.{name}": ([f"m-{name}/"], f"m-{name}/")
        for name in (
            *("volumes", "images", "serviceAccounts", "priorityClasses", "queuePriorityClasses"),
            *("queues", "runtimeClasses", "schedulers", "tolerations", "labels", "annotations"),
        )
    },
    "policy.notifications": (["https://m/"], "- https://m/"),
    "policy.maxPriority": (86, "maxPriority: 86"),
    "policy.profiles": (False, "profiles: false"),
    "policy.hostAccess": (True, "hostAccess: true"),
    "clusterDomain": ("m-domain", "value: m-domain"),
    "prices.currency": ("MMM", '"currency":"MMM"'),
    "prices.cpuHour": ("0.82", '"cpuHour":"0.82"'),
    "prices.deviceHour": ("83", '"deviceHour":"83"'),
    "tokenKey.existingSecret": ("m-secret", "secretName: m-secret"),
    "serviceAccount.name": ("m-account", "serviceAccountName: m-account"),
    "serviceAccount.annotations": ({"m-role": "yes"}, "m-role: 'yes'"),
    "workers": (71, "value: '71'"),
    "api.qps": (72.5, "value: '72.5'"),
    "api.burst": (73, "value: '73'"),
    "concurrency.maxRunning": (74, "value: '74'"),
    "concurrency.maxRunningPerNamespace": (75, "value: '75'"),
    "logging.format": ("plain", "value: plain"),
    "logging.level": ("WARNING", "value: WARNING"),
    "metrics.service.port": (76, "port: 76"),
    "metrics.service.annotations": ({"m-service": "yes"}, "m-service: 'yes'"),
    "metrics.podMonitor.enabled": (True, "kind: PodMonitor"),
    "networkPolicy.enabled": (True, "kind: NetworkPolicy"),
    "resources": ({"limits": {"memory": "77Mi"}}, "memory: 77Mi"),
    "podAnnotations": ({"m-note": "yes"}, "m-note: 'yes'"),
    "podLabels": ({"m-label": "yes"}, "m-label: 'yes'"),
    "nodeSelector": ({"m-pool": "yes"}, "m-pool: 'yes'"),
    "tolerations": ([{"key": "m-taint", "operator": "Exists"}], "key: m-taint"),
    "affinity": ({"podAffinity": {"m-affinity": []}}, "m-affinity: []"),
    "topologySpreadConstraints": ([{"topologyKey": "m-zone"}], "topologyKey: m-zone"),
    "priorityClassName": ("m-class", "priorityClassName: m-class"),
    "deploymentAnnotations": ({"m-reload": "yes"}, "m-reload: 'yes'"),
    "podSecurityContext": ({"fsGroup": 78}, "fsGroup: 78"),
    "securityContext": ({"privileged": False}, "privileged: false"),
    "livenessProbe": ({"periodSeconds": 79}, "periodSeconds: 79"),
    "readinessProbe": ({"periodSeconds": 80}, "periodSeconds: 80"),
    "revisionHistoryLimit": (84, "revisionHistoryLimit: 84"),
    "extraPodSpec": ({"dnsPolicy": "Default"}, "dnsPolicy: Default"),
    "crds.annotations": ({"m-sync": "yes"}, "m-sync: 'yes'"),
    "extraEnv": ([{"name": "M_ENV", "value": "yes"}], "name: M_ENV"),
    "envFrom": ([{"configMapRef": {"name": "m-proxy"}}], "name: m-proxy"),
    "extraVolumes": ([{"name": "m-volume", "emptyDir": {}}], "name: m-volume"),
    "extraVolumeMounts": ([{"name": "v", "mountPath": "/m-mount"}], "mountPath: /m-mount"),
    "extraObjects": (
        [{"apiVersion": "v1", "kind": "M", "metadata": {"name": "{{ .Release.Name }}-m-extra"}}],
        "name: batchinference-m-extra",
    ),
    "metrics.maxNamespaces": (81, "value: '81'"),
    "metrics.prometheusRule.enabled": (True, "kind: PrometheusRule"),
    "metrics.dashboard.enabled": (True, "batchinference.json"),
}
"""Values, rendered together, and a text of the manifests that each alone causes."""
ALONE: dict[str, tuple[Any, str]] = {
    "fullnameOverride": ("m-full", "name: m-full"),
    "image.digest": ("sha256:" + "77" * 32, "7777"),
    "watchNamespaces": (["m-watched"], "namespace: m-watched"),
}
REMOVED = {
    "crds.enabled": "kind: CustomResourceDefinition",
    "admissionPolicy.enabled": "kind: ValidatingAdmissionPolicy",
    "rbac.create": "apiVersion: rbac.authorization.k8s.io/v1",
    "rbac.aggregate": "aggregate-to-view",
    "metrics.service.enabled": "kind: Service\n",
}
"""Values that are true, and the text that is missing if they are false."""


def below(section: str, names: str) -> list[str]:
    return [f"{section}.{name}" for name in names.split()]


TESTED_ELSEWHERE = [
    *below("metrics.podMonitor", "interval labels"),  # test_metrics.py
    *below("metrics.serviceMonitor", "enabled interval labels"),
    *below("metrics.prometheusRule", "labels runbookUrl"),
    *below("metrics.dashboard", "labels annotations"),
    *below("networkPolicy", "metricsFrom apiServerPorts"),  # test_network_policy.py
    *below("networkPolicy.rayPods", "enabled namespaces kuberayFrom egress"),
    *below("batchService", "enabled replicas image path maxFileBytes maxLines models keysSecret"),
    *below("batchService", "env envFrom serviceAccountName serviceAccountAnnotations resources"),
    *below("batchService", "port from egress storage.endpoint storage.region storage.anonymous"),
    "crds.keep",  # test_crd.py
    "kuberay.enabled",  # test_kuberay.py
    "serviceAccount.create",  # test_roles.py: it requires a name
]


def leaves(values: Object, path: str = "") -> Iterator[str]:
    for key, value in values.items():
        inner = f"{path}{key}"
        if isinstance(value, dict) and inner not in FREE:
            yield from leaves(value, f"{inner}.")
        else:
            yield inner


def text_of(chart: Chart, values: Object) -> str:
    return yaml.dump_all(chart.manifests(values), Dumper=yaml.CSafeDumper)


def merged(values: Object, path: str, value: Any) -> Object:
    key, _, rest = path.partition(".")
    return {**values, key: merged(values.get(key, {}), rest, value) if rest else value}


def test_each_value_changes_the_manifests(chart: Chart) -> None:
    before, together = text_of(chart, WITH_CRDS), {}
    for path, (value, _) in SHOWN.items():
        together = merged(together, path, value)
    after = text_of(chart, together)
    found = {path: (text in before, text in after) for path, (_, text) in SHOWN.items()}
    for path, (value, text) in ALONE.items():
        found[path] = (text in before, text in text_of(chart, merged({}, path, value)))
    for path, text in REMOVED.items():
        found[path] = (text in text_of(chart, merged({}, path, False)), text in before)
    assert {path: one for path, one in found.items() if one != (False, True)} == {}


def test_every_value_is_tested() -> None:
    assert set(leaves(OWN)) == {*SHOWN, *ALONE, *REMOVED, *TESTED_ELSEWHERE}


def test_values_schema_equals_the_values() -> None:
    def known(schema: Object, path: str = "") -> Iterator[str]:
        for key, found in schema["properties"].items():
            inner = f"{path}{key}"
            child = SCHEMA["definitions"].get(found.get("$ref", "").rpartition("/")[2], found)
            if "properties" in child and inner not in FREE:
                yield from known(child, f"{inner}.")
            else:
                yield inner

    assert set(known(SCHEMA)) - {KUBERAY} == set(leaves(OWN))


def test_values_schema_of_defaults_equals_the_cluster_settings() -> None:
    fields = {field.alias for field in PlatformDefaults.model_fields.values()}
    assert SCHEMA["properties"]["defaults"]["properties"].keys() == fields


INVALID = [
    ({"bogus": 1}, "bogus"),
    ({"global": {"imageRegistry": "/x"}}, "/global/imageRegistry"),
    ({"image": {"name": "x"}}, "/image"),
    ({"image": {"repository": ""}}, "/image/repository"),
    ({"image": {"pullPolicy": "Often"}}, "/image/pullPolicy"),
    ({"image": {"digest": "sha256:4f5c"}}, "/image/digest"),
    ({"networkPolicy": {"apiServerPorts": []}}, "/networkPolicy/apiServerPorts"),
    ({"networkPolicy": {"rayPods": {"namespaces": "a"}}}, "/networkPolicy/rayPods/namespaces"),
    ({"networkPolicy": {"rayPods": {"kuberayFrom": [{}]}}}, "/networkPolicy/rayPods/kuberayFrom/0"),
    ({"networkPolicy": {"rayPods": {"egress": [{}]}}}, "/networkPolicy/rayPods/egress/0"),
    ({"clusterDomain": "cluster.local."}, "/clusterDomain"),
    ({"policy": {"images": ["registry.example"]}}, "/policy/images"),
    ({"policy": {"volumes": False}}, "/policy/volumes"),
    ({"policy": {"hostAccess": []}}, "/policy/hostAccess"),
    ({"admissionPolicy": {"enabled": 1}}, "/admissionPolicy/enabled"),
    ({"prices": {"currency": "euro"}}, "/prices/currency"),
    ({"prices": {"deviceHour": "-1"}}, "/prices/deviceHour"),
    ({"crds": {"enabled": "yes"}}, "/crds/enabled"),
    ({"crds": {"install": True}}, "/crds"),
    ({"kuberay": {"enabled": 1}}, "/kuberay/enabled"),
    ({"watchNamespaces": "a"}, "/watchNamespaces"),
    ({"watchNamespaces": ["a", "a"]}, "/watchNamespaces"),
    ({"watchNamespaces": ["a,b"]}, "/watchNamespaces/0"),
    ({"watchNamespaces": ["Upper"]}, "/watchNamespaces/0"),
    ({"watchNamespaces": ["a" * 64]}, "/watchNamespaces/0"),
    ({"defaults": []}, "/defaults"),
    ({"defaults": {"imagee": "x"}}, "/defaults"),
    ({"tokenKey": {"key": "secret"}}, "/tokenKey"),
    ({"batchService": {"paths": "x"}}, "/batchService"),
    ({"batchService": {"path": "./x"}}, "/batchService/path"),
    ({"batchService": {"models": [{"name": "a"}]}}, "/batchService/models/0"),
    ({"rbac": {"create": "no"}}, "/rbac/create"),
    ({"serviceAccount": {"annotations": {"a": 1}}}, "/serviceAccount/annotations/a"),
    ({"workers": 0}, "/workers"),
    ({"workers": 257}, "/workers"),
    ({"workers": "16"}, "/workers"),
    ({"api": {"qps": 0}}, "/api/qps"),
    ({"api": {"burst": 0}}, "/api/burst"),
    ({"concurrency": {"maxRunning": -1}}, "/concurrency/maxRunning"),
    ({"concurrency": {"maxRunningPerNamespace": "2"}}, "/concurrency/maxRunningPerNamespace"),
    ({"logging": {"format": "text"}}, "/logging/format"),
    ({"logging": {"level": "TRACE"}}, "/logging/level"),
    ({"metrics": {"service": {"port": "http"}}}, "/metrics/service/port"),
    ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
    ({"metrics": {"serviceMonitor": {"port": 1}}}, "/metrics/serviceMonitor"),
    ({"metrics": {"prometheusRule": {"runbookUrl": ""}}}, "/metrics/prometheusRule/runbookUrl"),
    ({"metrics": {"dashboard": {"labels": {"a": 1}}}}, "/metrics/dashboard/labels/a"),
    ({"metrics": {"maxNamespaces": 0}}, "/metrics/maxNamespaces"),
    ({"crds": {"annotations": {"a": 1}}}, "/crds/annotations/a"),
    ({"revisionHistoryLimit": -1}, "/revisionHistoryLimit"),
    ({"extraPodSpec": []}, "/extraPodSpec"),
    ({"extraPodSpec": {"volumes": []}}, "/extraPodSpec/volumes"),
    ({"topologySpreadConstraints": [1]}, "/topologySpreadConstraints/0"),
    ({"envFrom": {}}, "/envFrom"),
    ({"extraVolumes": ["ca"]}, "/extraVolumes/0"),
    ({"extraVolumeMounts": {}}, "/extraVolumeMounts"),
    ({"extraObjects": ["kind: Secret"]}, "/extraObjects/0"),
    ({"deploymentAnnotations": {"a": 1}}, "/deploymentAnnotations/a"),
    ({"commonLabels": {"a": 1}}, "/commonLabels/a"),
    ({"commonLabels": {"helm.sh/chart": "a"}}, "/commonLabels/helm.sh~1chart"),
    ({"podLabels": {"helm.sh/chart": "a"}}, "/podLabels/helm.sh~1chart"),
    ({"livenessProbe": {"httpGet": {}}}, "/livenessProbe/httpGet"),
    ({"imagePullSecrets": ["name"]}, "/imagePullSecrets/0"),
    ({"tolerations": {}}, "/tolerations"),
    ({"extraEnv": {"A": "b"}}, "/extraEnv"),
    ({"priorityClassName": 1}, "/priorityClassName"),
    ({"policy": {"notifications": ["https://a:65536/"]}}, "/policy/notifications/0"),
]


def test_invalid_values_are_refused_by_name(chart: Chart) -> None:
    """Helm reports all invalid values together, so each rendering has one of each section."""
    cases = defaultdict[str, list[tuple[Object, str]]](list)
    for values, path in INVALID:
        cases[next(iter(values))].append((values, path))
    for turn in zip_longest(*cases.values()):
        given = {name: value for values, _ in filter(None, turn) for name, value in values.items()}
        error = chart.refusal(given)
        assert [path for _, path in filter(None, turn) if f"'{path}'" not in error] == []


def test_values_that_the_templates_need_cannot_be_removed(chart: Chart) -> None:
    newer = [name for name, value in SETS["values of an older chart"].items() if value is None]
    optional = {*newer, *FREE, "revisionHistoryLimit"}
    needed = {name for name, value in OWN.items() if value and name not in optional}
    error = chart.refusal(dict.fromkeys(needed))
    assert [name for name in needed if f"'{name}'" not in error] == []


def test_value_of_an_existing_service_account_requires_a_name(chart: Chart) -> None:
    message = "serviceAccount.name is required when serviceAccount.create is false"
    assert message in chart.refusal({"serviceAccount": {"create": False}})


def test_image_digest_replaces_the_tag(chart: Chart) -> None:
    digest = "sha256:" + "4f5c" * 16
    image = {"repository": "registry.example/operator", "tag": "1", "digest": digest}
    deployment = one(chart.manifests({"image": image}), "Deployment")
    found = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert found == f"registry.example/operator@{digest}"


def test_numeric_string_value_stays_a_string(chart: Chart) -> None:
    manifests = chart.manifests({"image": {"tag": "1.10"}, "podLabels": {"version": "1.10"}})
    template = one(manifests, "Deployment")["spec"]["template"]
    assert template["spec"]["containers"][0]["image"].endswith(":1.10")
    assert template["metadata"]["labels"]["version"] == "1.10"
