"""The configuration of the service: a YAML file with the chart value `batchService`."""

import copy
from typing import Annotated, Any

from pydantic import Field

from batchinference.service.line_check import MAX_MODEL
from batchinference.spec import API_VERSION, KIND, Problem, SpecError, parse
from batchinference.spec.base import SpecModel, keyed
from batchinference.spec.quantities import Size
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import Uri
from batchinference.spec.yaml_documents import parse_settings

FORMAT = "openaiBatch"
Object = dict[str, Any]


class BatchModel(SpecModel):
    """A model that batches may use, and the job that runs these batches."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_MODEL)]
    """The name of the model in requests."""
    namespaces: list[str] = []
    """The namespaces that may use the model; all if empty."""
    spec: Object
    """The spec of the BatchInferences, without `read` and `write`."""


class ServiceConfig(SpecModel):
    """The settings of the service."""

    path: Uri
    """The directory or object store prefix for the files of all namespaces."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store."""
    max_file_bytes: Annotated[int, Field(ge=1), *Size] = 100 * 2**30
    """Maximum size of an uploaded file."""
    max_lines: Annotated[int, Field(ge=1, le=100_000_000)] = 10_000_000
    """Maximum number of lines of an uploaded file."""
    models: Annotated[list[BatchModel], *keyed("name", 256)] = []
    """The models."""

    def models_of(self, namespace: str) -> dict[str, BatchModel]:
        """Return the models that a namespace may use, by name."""
        allowed = (m for m in self.models if not m.namespaces or namespace in m.namespaces)
        return {model.name: model for model in allowed}

    def spec_of(self, model: BatchModel | None, source: str, target: str, window: str) -> Object:
        """Return the spec of the job that runs the requests in the file `source` within `window`.
        If there is no model, the spec has no steps."""
        spec: Object = copy.deepcopy(model.spec) if model else {}
        storage = self.storage.model_dump(by_alias=True, exclude_defaults=True)
        access = {"storage": storage} if storage else {}
        spec["read"] = {"format": FORMAT, "paths": [source], **access}
        spec["write"] = {"format": FORMAT, "path": target, **access}
        spec.setdefault("errors", {"maxPercent": 100})
        spec["deadlines"] = {**spec.get("deadlines", {}), "total": window}
        return spec


def parse_config(text: str) -> ServiceConfig:
    """Return the configuration in a YAML text. Raises SpecError for an invalid setting, also in the
    spec of a model."""
    config = parse_settings(text, ServiceConfig)
    for number, model in enumerate(config.models):
        field = f"models[{number}].spec"
        if names := {"read", "write"} & model.spec.keys():
            problem = "is set by the service for each batch. Remove it"
            raise SpecError([Problem(f"{field}.{min(names)}", problem)])
        source, target = f"{config.path}/input.jsonl", f"{config.path}/output"
        about = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "batch"}}
        try:
            parse({**about, "spec": config.spec_of(model, source, target, "24h")})
        except SpecError as error:
            problems = [Problem(f"models[{number}].{p.path}", p.message) for p in error.problems]
            raise SpecError(problems) from None
    return config
