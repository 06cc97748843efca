"""The fields of rendered RayJobs exist in the tested versions of KubeRay.

The API server drops unknown fields, without an error. `tests/tools/kuberay_fields.py` writes the
fields from the CRDs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from batchinference.cli.doctor_cluster import KUBERAY, version_of
from support.cluster.deployment import CHART
from support.documents.parsed import job
from support.operator.rendered import Rendered, render

FACTS = yaml.load((Path(__file__).parent / "kuberay_fields.yaml").read_bytes(), yaml.CSafeLoader)


def unknown(value: Any, fields: dict[str, Any], path: str = "spec") -> Iterator[str]:
    """Yield the paths of the fields of a value that are not among `fields`."""
    if isinstance(value, list):
        for item in value:
            yield from unknown(item, fields.get("[]", {}), f"{path}[]")
    elif isinstance(value, dict):
        for name, below in value.items():
            known = fields.get(name, fields.get("{}"))
            if known is None:
                yield f"{path}.{name}"
            else:
                yield from unknown(below, known, f"{path}.{name}")


def test_rendered_fields_exist_in_all_tested_versions(rendered: Rendered) -> None:
    assert [*unknown(rendered.ray_job["spec"], FACTS["fields"])] == []


def test_fields_of_a_queued_job_exist() -> None:
    made = render(job(cluster={"queueName": "gpu"}))
    assert made.ray_job["spec"]["suspend"]
    assert [*unknown(made.ray_job["spec"], FACTS["fields"])] == []


def test_unknown_field_is_found() -> None:
    (group,) = unknown({"rayClusterSpec": {"workerGroupSpecs": [{"priority": 1}]}}, FACTS["fields"])
    assert group == "spec.rayClusterSpec.workerGroupSpecs[].priority", "of KubeRay 1.7"


def test_doctor_knows_the_tested_versions() -> None:
    versions = FACTS["versions"]
    assert {version_of(version) for version in versions} == set(KUBERAY)
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (kuberay,) = (one for one in about["dependencies"] if one["name"] == "kuberay-operator")
    assert kuberay["version"] in versions
