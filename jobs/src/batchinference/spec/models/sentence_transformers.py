"""Models of the sentence-transformers library."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.base import (
    Dtype,
    Inputs,
    Revision,
    Source,
    WindowedModel,
    check_revision,
)
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage


class SentenceTransformersModel(WindowedModel):
    """An embedding model of the sentence-transformers library."""

    HUB_FILES: ClassVar[tuple[str, ...]] = ("modules.json", "config.json")

    runtime: Literal["sentenceTransformers"]
    """The library that runs the model."""
    source: Source
    """A model id of the Hub, the path of a folder that `save` wrote, or an object store prefix with
    such a folder."""
    revision: Revision | None = None
    """The branch, tag or commit of a model of the Hub."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source`."""
    inputs: Inputs
    """The column to embed: `text: COLUMN`, or `image: COLUMN` (uint8, height x width x 3)."""
    output: ColumnName
    """The column for the embeddings, float32."""
    normalize: bool | None = None
    """Whether to scale each embedding to length 1."""
    prompt: Annotated[str, Field(min_length=1, max_length=32768)] | None = None
    """A text that is added before each text."""
    prompt_name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """The name of a prompt of the model, such as query."""
    truncate_dim: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Keep only this many numbers of each embedding, for models that were trained for it."""
    dtype: Dtype | None = None
    """The data type of the model. By default, the data type of its files."""

    @property
    def output_type(self) -> ColumnType:
        return ["float32"]

    @property
    def padded_texts(self) -> tuple[str, ...]:
        return tuple(self.inputs[name] for name in ("text",) if name in self.inputs)

    @property
    def tokenized_inputs(self) -> tuple[str, ...]:
        return ("text",) if "text" in self.inputs and self.too_long != "windows" else ()

    def _check(self) -> None:
        if set(self.inputs) not in ({"text"}, {"image"}):
            raise invalid(
                "sentenceTransformers takes exactly one input: inputs: {text: COLUMN} or {image: "
                "COLUMN}"
            )
        check_revision(self.source, self.revision)
        if self.prompt is not None and self.prompt_name is not None:
            raise invalid("give 'prompt' or 'promptName', not both")
        if "image" in self.inputs and (self.prompt is not None or self.prompt_name is not None):
            raise invalid("a prompt is for texts, not for images")
        if "image" in self.inputs and self.too_long is not None:
            raise invalid("tooLong is for texts, not for images")
        self.check_overlap()
