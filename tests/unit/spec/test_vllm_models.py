"""Models for vLLM: prompts, engine arguments, adapters, and the number of GPUs."""

from __future__ import annotations

import pytest

from batchinference.spec import parse
from plugins.messages import Messages
from support.documents.minimal import Document, document
from support.documents.refusals import refused
from support.documents.vllm_models import vllm_step

STEP = "spec.steps[0]"


def refusal_of(step: Document) -> str:
    message = refused(document(steps=[step]))
    assert message.startswith(STEP)
    return message.removeprefix(STEP)


@pytest.mark.parametrize(
    ("parallelism", "gpus"),
    [({}, 1), ({"tensor": 4}, 4), ({"pipeline": 2}, 2), ({"tensor": 2, "pipeline": 3}, 6)],
    ids=str,
)
def test_vllm_replica_needs_as_many_gpus_as_its_parallelism(
    parallelism: dict[str, int], gpus: int, messages: Messages
) -> None:
    assert parse(document(steps=[vllm_step(gpu=gpus, parallelism=parallelism)]))
    for other in {1, gpus + 1} - {gpus}:
        messages.check(refusal_of(vllm_step(gpu=other, parallelism=parallelism)))


def test_vllm_without_gpus_is_for_its_build_for_cpus(messages: Messages) -> None:
    assert parse(document(steps=[vllm_step(gpu=0)]))
    messages.check(refusal_of({**vllm_step(), "resources": {"cpu": 2}}))
    assert refusal_of(vllm_step(gpu=0, parallelism={"pipeline": 2})).endswith("to 2, not 0")
