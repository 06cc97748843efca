"""Each value has an effect, and invalid values are refused before an installation."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
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
FREE |= {"podLabels", "serviceAccount.annotations", "metrics.service.annotations"}
FREE |= {"metrics.podMonitor.labels", "metrics.serviceMonitor.labels", "deploymentAnnotations"}
FREE |= {"metrics.prometheusRule.labels", "metrics.dashboard.labels"}
FREE |= {"batchService.resources", "batchService.serviceAccountAnnotations"}
FREE |= {"metrics.dashboard.annotations", "crds.annotations", "extraPodSpec"}
"""Values that are objects of Kubernetes or of the user, with arbitrary fields."""

CASES = read_yaml(Path(__file__).with_suffix(".yaml"))
"""By the path of a value: the value, and a text of the manifests that it causes."""


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
    for path, (value, _) in CASES["shown"].items():
        together = merged(together, path, value)
    after = text_of(chart, together)
    by_path = {path: (text in before, text in after) for path, (_, text) in CASES["shown"].items()}
    for path, (value, text) in CASES["alone"].items():
        by_path[path] = (text in before, text in text_of(chart, merged({}, path, value)))
    for path, text in CASES["removed"].items():
        by_path[path] = (text in text_of(chart, merged({}, path, False)), text in before)
    assert {path: one for path, one in by_path.items() if one != (False, True)} == {}


def test_every_value_is_tested() -> None:
    elsewhere = {name for names in CASES["tested elsewhere"].values() for name in names}
    tested = {name for kind in ("shown", "alone", "removed") for name in CASES[kind]}
    assert set(leaves(OWN)) == tested | elsewhere


def test_values_schema_equals_the_values() -> None:
    def known(schema: Object, path: str = "") -> Iterator[str]:
        for key, result in schema["properties"].items():
            inner = f"{path}{key}"
            child = SCHEMA["definitions"].get(result.get("$ref", "").rpartition("/")[2], result)
            if "properties" in child and inner not in FREE:
                yield from known(child, f"{inner}.")
            else:
                yield inner

    assert set(known(SCHEMA)) - {KUBERAY} == set(leaves(OWN))


def test_values_schema_of_defaults_equals_the_cluster_settings() -> None:
    fields = {field.alias for field in PlatformDefaults.model_fields.values()}
    assert SCHEMA["properties"]["defaults"]["properties"].keys() == fields


def test_invalid_values_are_refused_by_name(chart: Chart) -> None:
    """Helm reports all invalid values together, so each rendering has one of each section."""
    cases = defaultdict[str, list[tuple[Object, str]]](list)
    for values, path in CASES["invalid"]:
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
    result = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
    assert result == f"registry.example/operator@{digest}"


def test_numeric_string_value_stays_a_string(chart: Chart) -> None:
    manifests = chart.manifests({"image": {"tag": "1.10"}, "podLabels": {"version": "1.10"}})
    template = one(manifests, "Deployment")["spec"]["template"]
    assert template["spec"]["containers"][0]["image"].endswith(":1.10")
    assert template["metadata"]["labels"]["version"] == "1.10"
