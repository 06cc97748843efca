"""Models of the transformers library."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName
from batchinference.spec.models.base import Inputs, RuntimeModel, Source

TEXT_TASKS = ("feature-extraction", "text-classification")
IMAGE_TASKS = ("image-classification", "image-feature-extraction")


class TransformersModel(RuntimeModel):
    """A model of the transformers library, loaded and run as its task asks."""

    HUB_FILES: ClassVar[tuple[str, ...]] = ("config.json",)

    runtime: Literal["transformers"]
    """The library that runs the model."""
    task: Literal[
        "feature-extraction",
        "text-classification",
        "image-classification",
        "image-feature-extraction",
    ]
    """The task as transformers names it."""
    source: Source
    """A model id of the Hub, the path of a folder that `save_pretrained` wrote, or an s3://
    prefix that holds such a folder."""
    inputs: Inputs
    """The column for the model's input: `text: COLUMN` or `image: COLUMN`, as the task asks."""
    output: ColumnName
    """The column that takes the result: an embedding, or for classification a struct of
    `label` and `score`."""
    pooling: Literal["mean", "cls"] | None = None
    """How the embeddings of a text's tokens or an image's patches become one: their mean, or
    the first one. For the two feature-extraction tasks; mean unless told otherwise."""
    normalize: bool | None = None
    """Scale each embedding to length 1. For the two feature-extraction tasks."""
    options: Arguments = {}
    """Passed to the library as keyword arguments of the tokenizer or image processor, such as
    `max_length`."""

    @model_validator(mode="after")
    def _check(self) -> TransformersModel:
        wanted = "text" if self.task in TEXT_TASKS else "image"
        if set(self.inputs) != {wanted}:
            raise PydanticCustomError(
                "model_inputs",
                "task '{task}' takes exactly one input: inputs: {wanted}",
                {"task": self.task, "wanted": f"{{{wanted}: COLUMN}}"},
            )
        if not self.task.endswith("feature-extraction"):
            for name in ("pooling", "normalize"):
                if getattr(self, name) is not None:
                    raise PydanticCustomError(
                        "model_pooling",
                        "'{name}' is for the feature-extraction tasks, not for '{task}'",
                        {"name": name, "task": self.task},
                    )
        return self
