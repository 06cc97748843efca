"""Examples that need GPUs or NPUs, as rendered for a cluster."""

from __future__ import annotations

from typing import Any

import yaml

from batchinference.plan import plan_for_cluster
from batchinference.rendering.config_map import JOB_FILE
from batchinference.spec import parse, parse_one
from batchinference.spec.models import TransformersModel
from support.documents.pages import ROOT
from support.operator.rendered import Rendered, render


def rendered_example(name: str) -> Rendered:
    """Return the objects of an example. Its local paths are replaced by object store paths."""
    text = (ROOT / "examples" / name / "job.yaml").read_text().replace("./", "s3://bucket/")
    return render(parse(yaml.safe_load(text)))


def devices_of(group: dict[str, Any]) -> dict[str, str]:
    resources = group["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"].items() <= resources["requests"].items()
    return {name: count for name, count in resources["limits"].items() if "/" in name}


def test_sharded_model_example_gets_pods_with_two_gpus() -> None:
    made = rendered_example("sharded-model")
    (stage,) = plan_for_cluster(made.job.spec).stages
    assert (stage.gpus, dict(stage.kinds)) == (2, {"GPU": "cuda"})
    group = made.workers["continue"]
    assert devices_of(group) == {"nvidia.com/gpu": "2"}
    assert group["rayStartParams"]["num-gpus"] == "2"
    assert (group["minReplicas"], group["maxReplicas"]) == (0, 2)
    others = [devices_of(other) for name, other in made.workers.items() if name != "continue"]
    assert others == [{}] * len(others)
    (step,) = parse_one(made.config_map["data"][JOB_FILE]).spec.steps
    assert isinstance(step.model, TransformersModel)
    assert step.model.device_map == "balanced"
    assert step.model.source == "s3://bucket/model"


def test_npu_example_gets_pods_with_npus() -> None:
    made = rendered_example("npu")
    found = {name: devices_of(group) for name, group in made.workers.items()}
    assert {"huawei.com/Ascend910": "1"} in found.values()
    assert [counts for counts in found.values() if "nvidia.com/gpu" in counts] == []
