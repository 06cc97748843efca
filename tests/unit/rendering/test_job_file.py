"""The job's file in the ConfigMap: the driver reads the same job that the operator rendered."""

from __future__ import annotations

from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.rendering.objects import JOB_FILE, job_file
from batchinference.spec import BatchInference, load_documents, parse, parse_one
from batchinference.spec.job import LIFE
from support.documents.minimal import document, model_step, python_step
from support.documents.parsed import filter_step, job
from support.documents.variations import full_document
from support.operator.rendered import Rendered, render
from support.tiers import examples

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
ODD_TEXTS = (
    "yes",
    "1e3",
    "2026-01-01",
    "~",
    "a: b",
    "# no comment",
    "",
    " x ",
    "a\nb\n",
    "\t",
    "é",
    "\x85",
    "\u2028x",
)


def read_back(made: BatchInference) -> BatchInference:
    return parse_one(job_file(made, "uid"))


def work(made: BatchInference) -> dict[str, Any]:
    return made.spec.model_dump(exclude=set(LIFE))


def with_values(texts: list[str], value: Any) -> BatchInference:
    own = python_step()
    own["python"]["constructorArgs"] = {"value": value}
    env = [{"name": f"V{number}", "value": text} for number, text in enumerate(texts)]
    return job(steps=[own], cluster={"env": env})


def test_the_file_in_the_config_map_is_the_same_job(rendered: Rendered) -> None:
    there = parse_one(rendered.config_map["data"][JOB_FILE])
    assert work(there) == work(rendered.job)
    assert there.metadata.name == rendered.job.metadata.name


def test_full_job_survives_a_round_trip() -> None:
    full = parse(full_document())
    assert work(read_back(full)) == work(full)


def test_file_omits_mutable_fields() -> None:
    (there,) = load_documents(job_file(parse(full_document()), "uid"))
    assert set(LIFE).isdisjoint(there["spec"])


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(TEXTS, max_size=3), VALUES)
def test_values_survive_a_round_trip(texts: list[str], value: Any) -> None:
    made = with_values(texts, value)
    assert read_back(made).spec == made.spec


def test_ambiguous_texts_survive_a_round_trip() -> None:
    made = with_values(list(ODD_TEXTS), {text: text for text in ODD_TEXTS})
    assert read_back(made).spec == made.spec


def test_a_value_that_is_null_is_kept() -> None:
    made = with_values([], {"device": None})
    (step,) = read_back(made).spec.steps
    assert step.python is not None
    assert step.python.constructor_args == {"value": {"device": None}}


def test_the_file_holds_the_settings_that_the_platform_gave() -> None:
    made = render(job())
    assert parse_one(made.config_map["data"][JOB_FILE]).spec.cluster == made.job.spec.cluster
    assert made.job.spec.cluster.image is not None


def test_fields_of_the_api_server_are_omitted() -> None:
    added = {"uid": "u", "resourceVersion": "7", "managedFields": [{}], "annotations": {"a": "b"}}
    given_ = document(steps=[filter_step(), model_step()])
    observed = given_ | {"metadata": given_["metadata"] | added, "status": {"phase": "Running"}}
    file = job_file(parse(observed), "uid")
    assert file == job_file(parse(given_), "uid")
    assert set(yaml.safe_load(file)) == {"apiVersion", "kind", "metadata", "spec"}


def test_the_file_is_one_document_in_the_usual_order() -> None:
    file = job_file(job(steps=[filter_step()]), "uid")
    assert len(load_documents(file)) == 1
    assert file.index("apiVersion") < file.index("kind") < file.index("metadata:")
