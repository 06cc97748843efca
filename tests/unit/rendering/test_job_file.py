"""The job file in the ConfigMap: the driver reads the job that the operator rendered."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from batchinference.rendering.config_map import JOB_FILE, job_file
from batchinference.spec import BatchInference, load_documents, parse, parse_one
from batchinference.spec.base import SpecModel
from batchinference.spec.job import OPERATOR_FIELDS, BatchInferenceSpec, ErrorPolicy
from batchinference.spec.models import (
    HttpModel,
    OnnxModel,
    SentenceTransformersModel,
    TorchModel,
    TorchvisionModel,
    TransformersModel,
    VllmModel,
)
from batchinference.spec.profiles import Profile
from batchinference.spec.python_step import PythonStep
from batchinference.spec.resources import Resources
from batchinference.spec.steps import Replicas, Step
from batchinference.spec.storage import Storage
from support.documents.minimal import document, model_step, python_step
from support.documents.parsed import filter_step, job
from support.documents.variations import full_document
from support.operator.rendered import Rendered
from support.tiers import examples

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
AMBIGUOUS_TEXTS = (
    *("yes", "1e3", "2026-01-01", "~", "a: b", "# no comment", "", " x ", "a\nb\n", "\t", "é"),
    *("\x85", "\u2028x"),
)
OF_THE_OPERATOR = (
    *("ray_start_params", "idle_timeout", "termination_grace_period", "labels", "annotations"),
    *("affinity", "topology_spread_constraints", "scheduler_name", "fs_group"),
    "ephemeral_storage",
)


def read_back(made: BatchInference) -> BatchInference:
    return parse_one(job_file(made, "uid"))


def driver_fields(made: BatchInference) -> dict[str, Any]:
    head = {"node_selector", "tolerations", "ephemeral_storage"}
    cluster: dict[str, Any] = dict.fromkeys(OF_THE_OPERATOR, True)
    cluster |= {"head": head, "profiles": {"__all__": {"idle_timeout"}}}
    steps = {"__all__": {"resources": {"ephemeral_storage"}}}
    dumped = made.spec.model_dump(by_alias=True, exclude={"cluster": cluster, "steps": steps})
    return {k: v for k, v in dumped.items() if k not in OPERATOR_FIELDS}


def with_values(texts: list[str], value: Any) -> BatchInference:
    own = python_step()
    own["python"]["constructorArgs"] = {"value": value}
    env = [{"name": f"V{number}", "value": text} for number, text in enumerate(texts)]
    return job(steps=[own], cluster={"env": env})


def test_job_file_holds_the_rendered_job(rendered: Rendered) -> None:
    stored = parse_one(rendered.config_map["data"][JOB_FILE])
    assert driver_fields(stored) == driver_fields(rendered.job)
    assert stored.metadata.name == rendered.job.metadata.name


def test_job_file_has_every_field_except_those_of_the_operator() -> None:
    full = parse(full_document())
    assert driver_fields(read_back(full)) == driver_fields(full)
    (stored,) = load_documents(job_file(full, "uid"))
    assert set(OPERATOR_FIELDS).isdisjoint(stored["spec"])
    cluster = stored["spec"]["cluster"]
    assert {to_camel(name) for name in OF_THE_OPERATOR}.isdisjoint(cluster)
    assert cluster["head"].keys() == {"cpu", "memory"}


def test_driver_does_not_get_what_only_pods_need(rendered: Rendered) -> None:
    for file in rendered.config_map["data"].values():
        assert "ephemeralStorage" not in file
        assert "idleTimeout" not in file


FIELDS_WITH_DEFAULTS: dict[type[SpecModel], str] = {
    BatchInferenceSpec: "cluster deadlines errors notifications parameters priority resume retry"
    " steps suspend ttl",
    ErrorPolicy: "retry_failed_rows values warnings",
    Step: "",
    PythonStep: "call_args constructor_args constructor_refs method",
    Resources: "cpu custom gpu",
    Replicas: "max min",
    Profile: "env node_selector tolerations",
    Storage: "anonymous",
    HttpModel: "body concurrency headers_from images messages result_type retries sampling timeout",
    OnnxModel: "storage",
    SentenceTransformersModel: "storage",
    TorchModel: "storage trust_source",
    TorchvisionModel: "labels options storage",
    TransformersModel: "candidate_labels images messages options return_full_text sampling storage",
    VllmModel: "allow chat_template_args engine images lora_adapters max_concurrent_batches"
    " messages parallelism sampling storage task",
}
"""The fields that images of the first version know and that job files always contain."""


@pytest.mark.parametrize("model", FIELDS_WITH_DEFAULTS, ids=lambda model: model.__name__)
def test_job_file_has_no_new_field_that_is_not_set(model: type[SpecModel]) -> None:
    """Older images refuse fields that they do not know. The default of a new one is None."""
    fields = model.model_fields.items()
    written = {name for name, field in fields if field.get_default(call_default_factory=True)
               is not None and not field.is_required()}  # fmt: skip
    assert written - set(FIELDS_WITH_DEFAULTS[model].split()) == set()


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(TEXTS, max_size=3), VALUES)
def test_job_file_keeps_values(texts: list[str], value: Any) -> None:
    made = with_values(texts, value)
    assert read_back(made).spec == made.spec


def test_job_file_keeps_ambiguous_texts() -> None:
    made = with_values(list(AMBIGUOUS_TEXTS), {text: text for text in AMBIGUOUS_TEXTS})
    assert read_back(made).spec == made.spec


def test_job_file_omits_fields_of_the_api_server() -> None:
    added = {"uid": "u", "resourceVersion": "7", "managedFields": [{}], "annotations": {"a": "b"}}
    given_ = document(steps=[filter_step(), model_step()])
    observed = given_ | {"metadata": given_["metadata"] | added, "status": {"phase": "Running"}}
    file = job_file(parse(observed), "uid")
    assert file == job_file(parse(given_), "uid")
    assert set(yaml.safe_load(file)) == {"apiVersion", "kind", "metadata", "spec"}
