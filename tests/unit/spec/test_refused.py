"""Jobs that are refused or accepted. Each file of `refused` has the jobs of one part of the
specification, by what is wrong with them, and `messages.yaml` the messages about them. Each file of
`accepted` has jobs in which nothing is wrong.

`job` is the name of a valid job. Either `values` replace what is `at` a place of it, or `fields`
are set in the mapping there, or each of the `changes` is a place with its value. REMOVED removes a
field.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.http_models import chat, json_endpoint
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.refusals import refused, valid_documents
from support.documents.variations import REMOVED, at, changed, keys_of
from support.documents.vllm_models import vllm_step
from support.documents.yaml_files import read_yaml

SECRETS = ("hunter2", "s3cret", "secret1")
"""What no message may contain."""
PATHS = {"format": "text", "paths": ["in"], "options": {"includePaths": True}}
VARIABLE = {"name": "A", "value": "x"}
MOUNTED = {
    "volumes": [{"name": "v", "hostPath": {"path": "/var"}}],
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
TORCH = {
    **{"runtime": "torch", "source": "model.pt", "trustSource": True},
    **{"inputs": {"x": "x"}, "output": "y"},
}
GENERATION = model_step()["model"] | {"task": "text-generation", "output": "answer"}
PHOTOS = {
    "task": "image-text-to-text",
    "inputs": {"photo": "image", "text": "text"},
    "images": ["photo"],
}
REQUESTS = {"inputs": {"body": "text"}, "request": "body"}
STEPS: dict[str, Document] = {
    "embed": model_step(),
    "torch": model_step(model=TORCH),
    "chat": model_step(model=chat()),
    "json endpoint": model_step(model=json_endpoint()),
    "ask": vllm_step(),
    "requests to vllm": vllm_step(sampling={}, **REQUESTS),
    "requests to transformers": model_step(model=GENERATION | REQUESTS),
    "requests to an address": model_step(model=chat(**REQUESTS)),
    "python": python_step(),
    "function": python_step(callable_="module:function"),
    "chunk": {"chunk": {"column": "a", "size": 100}},
    "decode": {"decode": {"column": "a", "format": "image"}},
    "generation": model_step(model=GENERATION),
    "photos": model_step(model=GENERATION | PHOTOS),
}
FIELDS = {"job", "at", "values", "fields", "changes"}
"""The fields of a case."""
JOBS: dict[str, Document] = {
    **valid_documents(),
    **{name: document(steps=[{**step, "name": "one"}]) for name, step in STEPS.items()},
    "label": document(read=PATHS, steps=[{"name": "one", "labelFromPath": {"column": "class"}}]),
    "mount": document(cluster=MOUNTED),
    "variable": document(cluster={"env": [VARIABLE]}),
    "variable of a profile": document(cluster={"profiles": {"mine": {"env": [VARIABLE]}}}),
}


def cases_of(folder: str) -> dict[str, Document]:
    """Return the cases of the files of a folder."""
    files = sorted(Path(__file__).with_name(folder).glob("*.yaml"))
    result = {file.stem: read_yaml(file) for file in files}
    cases = {f"{part}: {about}": result[part][about] for part in result for about in result[part]}
    assert all(case.keys() <= FIELDS for case in cases.values())
    return cases


REFUSED, ACCEPTED = cases_of("refused"), cases_of("accepted")


def variations(case: dict[str, Any]) -> Iterator[Document]:
    """Yield the jobs of a case."""
    job = JOBS[case.get("job", "smallest")]
    for change in case.get("changes", ()):
        ((name, value),) = change.items()
        yield changed(job, keys_of(name), REMOVED if value == "REMOVED" else value)
    keys = keys_of(case["at"]) if "at" in case else ()
    for depth in range(1, len(keys)):
        parent = at(job, keys[: depth - 1])
        if isinstance(parent, dict) and keys[depth - 1] not in parent:
            job = changed(job, keys[:depth], {})
    for value in case.get("values", ()):
        yield changed(job, keys, REMOVED if value == "REMOVED" else value)
    for fields in case.get("fields", ()):
        mapping = {**at(job, keys), **fields}
        kept = {name: value for name, value in mapping.items() if value != "REMOVED"}
        yield changed(job, keys, kept)


@pytest.mark.parametrize("about", REFUSED)
def test_job_is_refused(about: str, messages: Messages) -> None:
    result = [refused(job) for job in variations(REFUSED[about])]
    assert result, "a case needs a job"
    messages.check_in_order(result)
    assert not any(secret in message for secret in SECRETS for message in result)


@pytest.mark.parametrize("about", ACCEPTED)
def test_job_is_accepted_unchanged(about: str) -> None:
    jobs = list(variations(ACCEPTED[about]))
    assert jobs, "a case needs a job"
    for job in jobs:
        assert parse(job).model_dump(mode="json", by_alias=True, exclude_unset=True) == job
