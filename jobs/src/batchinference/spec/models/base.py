"""What every model of a step has in common."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from batchinference.spec.addresses import is_local
from batchinference.spec.arguments import Arguments
from batchinference.spec.base import ColumnName, SpecModel
from batchinference.spec.resources import Resources
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

Source = Annotated[str, Field(min_length=1, max_length=1024)]
Inputs = Annotated[dict[ColumnName, ColumnName], Field(min_length=1, max_length=32)]
Revision = Annotated[str, Field(min_length=1, max_length=256)]
Label = Annotated[str, Field(min_length=1, max_length=256)]
TopK = Annotated[int, Field(ge=1, le=100000)]
OutputName = Annotated[str, Field(min_length=1, max_length=256)]
Dtype = Literal["float32", "float16", "bfloat16"]
MODEL_BATCH_SIZE = 32
_PATH_MARKS = ("/", "./", "../", "~", "file://")


class RuntimeModel(SpecModel):
    """A model, told by its runtime. A runtime has a `source` or a `factory` as it needs them."""

    HUB_FILES: ClassVar[tuple[str, ...]] = ()
    """Files of which a model of the Hub has one at least. None of them: a source is always a
    place, never the id of such a model."""
    IN_PROCESS: ClassVar[bool] = True
    """Whether one process loads the model and runs it, alone and without waiting for others."""

    @property
    def source_or_none(self) -> str | None:
        """Where the model's files are, for a runtime that loads files."""
        return getattr(self, "source", None)

    @property
    def revision_or_none(self) -> str | None:
        """Which of its states a model of the Hub is taken in."""
        return getattr(self, "revision", None)

    @property
    def storage_of_source(self) -> Storage:
        """How the object store that its files are in is reached."""
        return getattr(self, "storage", FROM_ENVIRONMENT)

    @property
    def other_places(self) -> list[str]:
        """Where further files of the model are: paths or addresses."""
        return []

    @property
    def factory_or_none(self) -> str | None:
        """The user's function that makes the model, for a runtime that takes one."""
        return getattr(self, "factory", None)

    @property
    def padded_texts(self) -> tuple[str, ...]:
        """The columns with texts that the model pads to the longest one of a batch. None for a
        model that generates texts: the time for a batch depends on the texts it generates."""
        return ()

    @property
    def pods(self) -> int:
        """Pods of a replica on a cluster. GPUs are divided between them."""
        return 1

    @property
    def actors_beside(self) -> int:
        """Actor pools that work for the model's own, on CPUs alone."""
        return 0

    def check_pool(self, resources: Resources, batch_size: int | str | None) -> None:
        """Raise when the step's resources or batches do not fit the model."""

    @property
    def default_batch_size(self) -> int:
        """Rows a batch, unless the step says otherwise."""
        return MODEL_BATCH_SIZE


def only_for(
    tag: str, fields: Mapping[str, Sequence[str]], lists: Container[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the rule of each field that not all values of the tag have, and its message."""
    for field, values in fields.items():
        name = to_camel(field)
        empty = f" || size(self.{name}) == 0" if field in lists else ""
        rule = f"!has(self.{name}){empty} || self.{tag} in {list(values)}"
        yield rule, f"{name} is for {tag} {', '.join(values)} only"


NO_SOURCE = "give a 'factory' or a 'source' (or both)"
SOURCE_RULE = ("has(self.factory) || has(self.source)", NO_SOURCE)


def check_factory(model: RuntimeModel, arguments: Arguments) -> None:
    """Raise when nothing leads to a model, or when arguments have no factory."""
    if model.factory_or_none is None and model.source_or_none is None:
        raise PydanticCustomError("model_source", NO_SOURCE, {})
    if model.factory_or_none is None and arguments:
        raise PydanticCustomError("model_factory", "'factoryArgs' needs a 'factory'", {})


def check_revision(source: str, revision: str | None) -> None:
    """Raise when there is a revision of what is plainly no model of the Hub."""
    if revision is not None and (not is_local(source) or source.startswith(_PATH_MARKS)):
        raise PydanticCustomError(
            "model_revision",
            "'revision' is for models of the Hub, and '{source}' is none",
            {"source": source},
        )
