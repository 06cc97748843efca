"""Creates vLLM's sampling and pooling parameters, and checks them with the engine."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from batchinference.pipeline.errors import ModelLoad, describe
from batchinference.spec.models import VllmModel
from batchinference.spec.models.answer_schema import AnswerSchema
from batchinference.spec.models.sampling import GENERATE, check_kind

_DEFINITIONS = ("$defs", "definitions")
_BY_NAME = (*_DEFINITIONS, "properties", "patternProperties")
"""Keywords of JSON Schema whose value is a dict of schemas by name."""


def parameters_of(model: VllmModel) -> Any:
    """Return the parameters that all rows share. Raises ModelLoad if vLLM refuses `sampling`."""
    try:
        return _parameters(model, {})
    except Exception as error:
        raise ModelLoad(f"sampling: vLLM does not accept it: {describe(error)}") from error


def parameters_of_row(model: VllmModel, row: Mapping[str, Any]) -> Any:
    """Return all parameters of a row. Raises ValueError if a value of its columns is invalid."""
    values = {name: row[column] for name, column in model.row_parameters.items()}
    row_values = {name: value for name, value in values.items() if value is not None}
    for name, value in row_values.items():
        check_kind(name, value, GENERATE[name])
    return _parameters(model, row_values)


def _parameters(model: VllmModel, row_values: Mapping[str, Any]) -> Any:
    import vllm
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    of_rows = model.row_parameters
    values = {name: value for name, value in model.sampling.items() if name not in of_rows}
    if model.task != "generate":
        return vllm.PoolingParams(**values, task="embed" if model.task == "embed" else "classify")
    if model.answer_schema is not None:
        values["structured_outputs"] = {"json": json.dumps(model.answer_schema.document)}
    if constraint := values.pop("structured_outputs", None):
        values["structured_outputs"] = StructuredOutputsParams(**constraint)
    # skip_clone: otherwise, the engine copies the parameters of each row deeply
    own = {"output_kind": RequestOutputKind.FINAL_ONLY, "skip_clone": True}
    # None lets a text fill the context of the model. vLLM's default is a limit of 16 tokens
    return vllm.SamplingParams(**{"max_tokens": None, **values, **row_values, **own})


def check_parameters(model: VllmModel, llm: Any, parameters: Any) -> None:
    """Raise ModelLoad if an engine refuses the parameters that all rows have in common."""
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
    """Return which keyword or part of a schema an engine refuses, as a path in the step."""
    document = schema.document
    named = {name: document[name] for name in _DEFINITIONS if name in document}

    def takes(part: dict[str, Any]) -> bool:
        return accepts({**named, **part} if '"$ref"' in json.dumps(part) else part)

    path, part = "schema.fields" if schema.json_schema is None else "schema.jsonSchema", document
    while refused := next((each for each in _subschemas(part) if not takes(each[1])), None):
        path, part = f"{path}.{refused[0]}", refused[1]
    for name in sorted(part, key="type".__eq__):  # "type" last: most others depend on it
        if takes({key: part[key] for key in part if key != name}):
            return f"{path}.{name}"
    return path


def _subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the schemas in a schema with their paths, definitions first."""
    for name in sorted(schema, key=lambda name: name not in _DEFINITIONS):
        value = schema[name]
        inner = value if name in _BY_NAME else {name: value}
        for key, part in inner.items():
            at = f"{name}.{key}" if name in _BY_NAME else name
            listed = part if isinstance(part, list) else [part]
            for number, each in enumerate(listed):
                if isinstance(each, dict):
                    yield (f"{at}[{number}]" if isinstance(part, list) else at), each
