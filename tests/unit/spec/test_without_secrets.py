"""The specification that lies beside the output."""

from __future__ import annotations

from batchinference.spec import parse
from batchinference.spec.job import BatchInferenceSpec
from batchinference.spec.secrets import without_secrets
from support.documents.minimal import document, model_step, python_step
from support.documents.variations import full_document

SECRET = "hunter2"


def test_specification_is_unchanged() -> None:
    job = document(steps=[model_step(batchSize=8)])
    assert without_secrets(parse(job).spec) == job["spec"]


def test_redacted_job_is_valid_and_complete() -> None:
    job = full_document()
    shown = without_secrets(parse(job).spec)
    spec = BatchInferenceSpec.model_validate(shown)
    assert without_secrets(spec) == shown
    expected = job["spec"]
    del expected["cluster"]
    for step in expected["steps"]:
        for held in (step.get("python", {}), step.get("model", {})):
            for name in ("constructorArgs", "callArgs", "factoryArgs"):
                held.pop(name, None)
    assert shown == expected


def test_redacted_job_holds_no_password() -> None:
    torch = {"runtime": "torch", "factory": "own:build", "factoryArgs": {"token": SECRET},
             "inputs": {"x": "x"}, "output": "y"}  # fmt: skip
    own = python_step("own")
    own["python"] |= {"constructorArgs": {"key": [SECRET]}, "callArgs": {"login": {"a": SECRET}}}
    env = [{"name": "PASSWORD", "value": SECRET}]
    steps = [{"name": "torch", "model": torch}, own]
    shown = without_secrets(parse(document(steps=steps, cluster={"env": env})).spec)
    assert [step["name"] for step in shown["steps"]] == ["torch", "own"]
    assert SECRET not in str(shown)
