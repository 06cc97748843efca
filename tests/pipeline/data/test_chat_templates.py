"""Chat templates that do not accept the messages of a job are refused before rows are read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import transformers

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.preflight import preflight
from batchinference.pipeline.runtimes import check_runtime
from batchinference.pipeline.runtimes.vllm.chat_template import check_template
from batchinference.spec import parse
from batchinference.spec.models import VllmModel
from plugins.messages import Messages
from support.documents.minimal import document
from support.documents.vllm_models import vllm
from support.models.replicas import model_of
from support.models.run_transformers import loaded
from support.models.tiny_transformers import set_template

Tiny = Callable[[str], str]
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ messages[0].content }}"
)
ALTERNATE = (
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ message.content }}{% endfor %}"
)
BROKEN = "{{ messages[0].content.nothing.at_all }}"
EXAMPLES = [{"role": "user", "content": "2 + 2?"}, {"role": "user", "content": "3 + 3?"}]
CASES: list[tuple[str | None, dict[str, Any], str | None]] = [
    (NO_SYSTEM, {"system": "Be brief.", "prompt": "{text}"}, "no system role"),
    (NO_SYSTEM, {"prompt": "{text}"}, None),
    (ALTERNATE, {"messages": EXAMPLES, "prompt": "{text}"}, "must alternate"),
    (BROKEN, {"prompt": "{text}"}, "does not accept the messages"),
    (None, {"system": "Be brief.", "prompt": "{text}"}, "system: .*no chat template"),
    (None, {"prompt": "{text}"}, None),
]


@pytest.fixture
def source(tiny: Tiny, tmp_path: Path) -> Callable[[str | None], str]:
    """Return a function that gives the folder of a model with a chat template."""

    def written(template: str | None) -> str:
        shutil.copytree(tiny("text_model"), tmp_path / "model")
        set_template(tmp_path / "model", template)
        return str(tmp_path / "model")

    return written


@pytest.mark.parametrize(("template", "fields", "problem"), CASES)
def test_template_is_checked_before_the_job_and_when_a_replica_starts(
    source: Any, template: str | None, fields: dict[str, Any], problem: str | None
) -> None:
    folder = source(template)
    model = model_of("transformers", ("text",), task="text-generation", source=folder, **fields)
    if problem is None:
        check_runtime(model)
        assert loaded("text-generation", folder, ["text"], **fields)
        return
    with pytest.raises(ModelLoad, match=problem):
        check_runtime(model)
    with pytest.raises(ModelLoad, match=problem):
        loaded("text-generation", folder, ["text"], **fields)


def test_deep_validation_names_the_step(source: Any, tmp_path: Path) -> None:
    model = {
        **{"runtime": "transformers", "task": "text-generation", "source": source(NO_SYSTEM)},
        **{"inputs": {"text": "text"}, "output": "out", "system": "Hm.", "prompt": "{text}"},
    }
    read = {"format": "items", "items": [{"text": "a"}]}
    write = {"format": "parquet", "path": str(tmp_path / "out")}
    steps = [{"name": "ask", "model": model}]
    spec = parse(document(read=read, steps=steps, write=write)).spec
    (problem,) = (one for one in preflight(spec) if one.path.startswith("spec.steps[0]"))
    assert "no system role" in problem.message


def test_model_that_is_not_on_this_machine_is_checked_later() -> None:
    fields = {"task": "text-generation", "system": "Hm.", "prompt": "{text}"}
    for place in ("s3://models/nowhere", "org/nowhere", "/nowhere"):
        check_runtime(model_of("transformers", ("text",), source=place, **fields))


def test_vision_model_is_checked_with_images(tiny: Tiny) -> None:
    fields = {"prompt": "{text} {image}", "images": ["image"], "system": "Hm."}
    given = {"task": "image-text-to-text", "source": tiny("vision_chat"), **fields}
    check_runtime(model_of("transformers", ("image", "text"), **given))


@pytest.mark.parametrize(("template", "fields", "problem"), CASES[:4])
def test_template_for_vllm_is_checked(
    tiny: Tiny, template: str, fields: dict[str, Any], problem: str | None
) -> None:
    given = vllm(inputs={"text": "text"}, chatTemplate=template, **fields)
    spec = VllmModel.model_validate(given)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("text_model"))
    with pytest.raises(ModelLoad, match=problem) if problem else nullcontext():
        check_template(spec, tokenizer)


def test_chat_for_vllm_needs_a_template(tiny: Tiny, messages: Messages) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("text_model"))
    with messages.raises(ModelLoad):
        check_template(VllmModel.model_validate(vllm()), tokenizer)
