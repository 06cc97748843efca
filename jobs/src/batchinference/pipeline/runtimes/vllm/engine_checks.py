"""Checks of the parameters of a model that need its engine: what constrains its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from batchinference.pipeline.errors import ModelLoad, describe
from batchinference.spec.models import VllmModel
from batchinference.spec.models.answers import AnswerSchema

_OF_NAMES = ("$defs", "definitions", "properties", "patternProperties")
_DEFINITIONS = _OF_NAMES[:2]


def check_parameters(model: VllmModel, llm: Any, parameters: Any) -> None:
    """Raise ModelLoad if an engine refuses the parameters of all rows, as it would for each row."""
    from vllm.sampling_params import StructuredOutputsParams

    config = llm.vllm_config
    others = config.speculative_config, config.structured_outputs_config, llm.get_tokenizer()

    def accepts(document: Any) -> bool:
        candidate = parameters.clone()
        candidate.structured_outputs = StructuredOutputsParams(json=json.dumps(document))
        try:
            candidate.verify(config.model_config, *others)
        except Exception:  # noqa: BLE001 - each backend raises its own
            return False
        return True

    try:
        parameters.verify(config.model_config, *others)
    except Exception as error:
        schema = model.answer_schema
        where = "sampling" if schema is None else _culprit(schema, accepts)
        fix = "Correct it, or choose another structured_outputs_config.backend in engine"
        problem = describe(error).rstrip(".\n ")
        raise ModelLoad(f"{where}: the engine refuses it: {problem}. {fix}") from error


def _culprit(schema: AnswerSchema, accepts: Callable[[Any], bool]) -> str:
    """Return the field and the keyword because of which a schema is refused."""
    whole = schema.document
    named = {name: whole[name] for name in _DEFINITIONS if name in whole}

    def takes(part: dict[str, Any]) -> bool:
        return accepts({**named, **part} if '"$ref"' in json.dumps(part) else part)

    path, part = "schema.fields" if schema.json_schema is None else "schema.jsonSchema", whole
    while refused := next((each for each in _parts(part) if not takes(each[1])), None):
        path, part = f"{path}.{refused[0]}", refused[1]
    for name in sorted(part, key="type".__eq__):  # without a type, most keywords have no effect
        if takes({key: part[key] for key in part if key != name}):
            return f"{path}.{name}"
    return path


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas in a schema with their paths, first those that others name."""
    for name in sorted(schema, key=lambda name: name not in _DEFINITIONS):
        value = schema[name]
        inner = value if name in _OF_NAMES else {name: value}
        for key, part in inner.items():
            at = f"{name}.{key}" if name in _OF_NAMES else name
            listed = part if isinstance(part, list) else [part]
            for number, each in enumerate(listed):
                if isinstance(each, dict):
                    yield (f"{at}[{number}]" if isinstance(part, list) else at), each
