"""The model of a step: one class a runtime."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, ModulePath, SpecModel

Source = Annotated[str, Field(min_length=1, max_length=1024)]
Inputs = Annotated[dict[ColumnName, ColumnName], Field(min_length=1, max_length=32)]

TEXT_TASKS = ("feature-extraction", "text-classification")
IMAGE_TASKS = ("image-classification", "image-feature-extraction")


class TransformersModel(SpecModel):
    """A model of the transformers library, loaded and run as its task asks."""

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


class TorchModel(SpecModel):
    """A PyTorch module: made by a function, or loaded from a file."""

    runtime: Literal["torch"]
    """The library that runs the model."""
    factory: ModulePath | None = None
    """`module:function` that returns the torch.nn.Module. With `source`, the module then loads
    that state dict."""
    factory_args: Arguments = {}
    """Keyword arguments of the factory."""
    source: Source | None = None
    """A path or s3:// address: of a state dict when there is a factory; else of a TorchScript
    (.pt) or exported program (.pt2) file."""
    inputs: Inputs
    """The argument of the module's forward, and the column that it takes as a tensor of
    batch x the column's own shape."""
    output: ColumnName
    """The column that takes the module's output, a tensor of batch x any shape."""

    @model_validator(mode="after")
    def _check(self) -> TorchModel:
        if self.factory is None and self.source is None:
            raise PydanticCustomError(
                "model_source", "give a 'factory' or a 'source' (or both)", {}
            )
        if self.factory is None and self.factory_args:
            raise PydanticCustomError("model_factory", "'factoryArgs' needs a 'factory'", {})
        return self


Model = Annotated[TransformersModel | TorchModel, Field(discriminator="runtime")]
