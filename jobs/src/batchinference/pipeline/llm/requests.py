"""What the engine is asked for a row, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from batchinference.pipeline.prompts import messages_of, text_of
from batchinference.spec.models import VllmModel
from batchinference.spec.uris import is_local, local_path

Request = dict[str, Any]


def request_of(model: VllmModel, row: Mapping[str, Any]) -> Request:
    """The columns that Ray's stages read. Raises for values that nothing can be made of."""
    told = {name: value for name, value in row.items() if name != model.adapter}
    request: Request = {}
    if model.is_chat:
        request["messages"] = messages_of(model, told)
    else:
        request["prompt"] = text_of(model, told)
    if model.adapter is not None:
        request["model"] = _adapter(model, row[model.adapter])
    return request


def parameters_of(model: VllmModel) -> Request:
    """The columns that are the same for all rows."""
    return {"sampling_params" if model.task == "generate" else "pooling_params": model.sampling}


def _adapter(model: VllmModel, name: str | None) -> str:
    """What Ray takes for an adapter: a name below the path that the processor knows, or a path.
    The name of the model itself stands for none."""
    if name is None:
        return model.source
    below = model.lora_path is not None and is_local(model.lora_path)
    return f"{local_path(str(model.lora_path)).rstrip('/')}/{name}" if below else name


def result_of(task: str) -> Callable[[Mapping[str, Any]], Any]:
    """What the engine's answer holds for the output: a text, or a vector of float32."""
    if task == "embed":
        return lambda answer: np.asarray(answer["embeddings"], dtype=np.float32)
    return lambda answer: answer["generated_text"]
