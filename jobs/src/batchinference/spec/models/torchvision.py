"""Image models of torchvision."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from batchinference.spec.arguments import Arguments
from batchinference.spec.base import WEIGHTS, ColumnName, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.models.base import LABELED, Dtype, Inputs, Label, LabelModel, Source, TopK
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

Arch = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$", max_length=64)]
Weights = Annotated[str, Field(pattern=WEIGHTS, max_length=64)]


class TorchvisionModel(LabelModel):
    """A classification model of torchvision, with the transforms and labels of its weights."""

    runtime: Literal["torchvision"]
    """The library that runs the model."""
    arch: Arch
    """The name of the model in torchvision.models, such as resnet152."""
    weights: Weights | None = None
    """The torchvision name of the weights, such as IMAGENET1K_V1. DEFAULT by default. Their
    transforms are applied to the images. Without `source`, torchvision downloads the weights."""
    source: Source | None = None
    """The path or URI of a state dict, which is loaded instead of `weights`."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store of `source`."""
    inputs: Inputs
    """The column with images (uint8, height x width x 3): `image: COLUMN`."""
    output: ColumnName
    """The column for a struct of `index`, `label` and `score`; with `features`, for an
    embedding."""
    top_k: TopK | None = None
    """Return a list of at most this many of the most likely classes, the most likely first. By
    default, only the most likely class."""
    labels: Annotated[list[Label], Field(max_length=1000)] = []
    """The names of the classes, in order, for a `source` with other classes than the weights."""
    features: bool | None = None
    """Whether to return the input of the last linear layer as an embedding, instead of classes."""
    dtype: Dtype | None = None
    """The data type of the model. float32 by default."""
    options: Arguments = {}
    """Keyword arguments of the function that builds the model. With `labels`, `num_classes` is the
    number of labels by default."""

    @property
    def classifies(self) -> bool:
        return not self.features and self.top_k is None

    @property
    def output_type(self) -> ColumnType:
        if self.features:
            return ["float32"]
        if self.score_output:
            return "string"
        one: ColumnType = {"index": "int64", **LABELED}
        return [one] if self.top_k else one

    def _check(self) -> None:
        if set(self.inputs) != {"image"}:
            raise invalid("torchvision takes exactly one input: inputs: {image: COLUMN}")
        for alias, value in (("topK", self.top_k), ("labels", self.labels)):
            if self.features and value:
                raise invalid(f"'{alias}' is for classes, not for 'features'")
        self.check_score()
        if self.labels and self.source is None:
            raise invalid("'labels' needs a 'source': the weights have their own")
