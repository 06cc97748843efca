"""Models of the sentence-transformers library."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.base import ColumnName
from batchinference.spec.models.base import (
    Dtype,
    Inputs,
    Revision,
    RuntimeModel,
    Source,
    check_revision,
)
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


class SentenceTransformersModel(RuntimeModel):
    """An embedding model of the sentence-transformers library."""

    HUB_FILES: ClassVar[tuple[str, ...]] = ("modules.json", "config.json")

    runtime: Literal["sentenceTransformers"]
    """The library that runs the model."""
    source: Source
    """A model id of the Hub, the path of a folder that `save` wrote, or an s3:// prefix that holds
    such a folder."""
    revision: Revision | None = None
    """The branch, tag or commit of a model of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How the object store of a `source` is reached that is an address."""
    inputs: Inputs
    """The column to embed: `text: COLUMN`, or `image: COLUMN` (uint8 of height x width x 3) for a
    model that takes images."""
    output: ColumnName
    """The column that takes the embeddings, float32."""
    normalize: bool | None = None
    """Scale each embedding to length 1."""
    prompt: Annotated[str, Field(min_length=1, max_length=32768)] | None = None
    """A text to put before each row's."""
    prompt_name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The name of one of the model's own prompts, such as query."""
    truncate_dim: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Keep the first numbers of each embedding, for models that were trained for it."""
    dtype: Dtype | None = None
    """The numbers that the model computes with, instead of those it comes with."""

    @property
    def padded_texts(self) -> tuple[str, ...]:
        return tuple(self.inputs[name] for name in ("text",) if name in self.inputs)

    @model_validator(mode="after")
    def _check(self) -> SentenceTransformersModel:
        if set(self.inputs) not in ({"text"}, {"image"}):
            raise PydanticCustomError(
                "model_inputs",
                "sentenceTransformers takes exactly one input: inputs: {text: COLUMN} or "
                "{image: COLUMN}",
                {},
            )
        check_revision(self.source, self.revision)
        if self.prompt is not None and self.prompt_name is not None:
            raise PydanticCustomError("model_prompt", "give 'prompt' or 'promptName', not both", {})
        if "image" in self.inputs and (self.prompt is not None or self.prompt_name is not None):
            raise PydanticCustomError("model_prompt", "a prompt is for texts, not for images", {})
        return self
