"""The base classes of models, and types of fields that several runtimes share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from batchinference.spec.addresses import (
    SCHEMES,
    fix_of_variable,
    is_local,
    scheme_of,
    unexpanded_variable,
)
from batchinference.spec.base import ColumnName, invalid
from batchinference.spec.column_types import ColumnType
from batchinference.spec.resources import Resources
from batchinference.spec.step_facts import NamedSource, StepFacts, StepSettings
from batchinference.spec.storage import FROM_ENVIRONMENT
from batchinference.spec.uri_fields import NO_CREDENTIALS

_HUB_ADDRESS = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)/|hf://)([\w.-]+/[\w.-]+).*"
)


def _check_source(source: str) -> str:
    """Return the source of a model. Raises a validation error if it cannot be a path, an address or
    the id of a model of the Hub."""
    problem = ""
    if hub := _HUB_ADDRESS.fullmatch(source):
        problem = f"a model of the Hub has no address. Write {hub[1]}"
    elif named := re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*)@([\w.-]+)", source):
        problem = f"a revision has its own field. Write source: {named[1]}, revision: {named[2]}"
    elif scheme_of(source) not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        problem = f"this scheme is not supported. Use a path, one of {known}, or the id of a model"
    elif re.match(r"[A-Za-z]:[\\/](?!/)", source):
        problem = "a path of Windows does not exist on the workers. Write a path with '/'"
    elif is_local(source) and (variable := unexpanded_variable(source)):
        problem = f"{variable} is not expanded. {fix_of_variable(variable)}"
    if problem:
        raise invalid(problem)
    return source


Source = Annotated[
    str, Field(min_length=1, max_length=1024), *NO_CREDENTIALS, AfterValidator(_check_source)
]
Inputs = Annotated[dict[ColumnName, ColumnName], Field(min_length=1, max_length=32)]
Revision = Annotated[str, Field(min_length=1, max_length=256)]
Label = Annotated[str, Field(min_length=1, max_length=256)]
TopK = Annotated[int, Field(ge=1, le=100000)]
OutputName = Annotated[str, Field(min_length=1, max_length=256)]
Dtype = Literal["float32", "float16", "bfloat16"]
MODEL_BATCH_SIZE = 32


class RuntimeModel(StepSettings):
    """Base class of models. Subclasses define `source` or `factory` if the runtime uses them."""

    HUB_FILES: ClassVar[tuple[str, ...]] = ()
    """A model of the Hub has one of these files. If empty, `source` cannot be an id of the Hub."""
    IN_PROCESS: ClassVar[bool] = True
    """Whether a single process loads and runs the model, without other processes or services."""
    REMOTE: ClassVar[bool] = False
    """Whether a server runs the model."""
    MEDIA: ClassVar[Mapping[str, str]] = {}
    """The inputs that cannot be texts, and how a job gets their values, for messages."""
    WITHOUT_DEVICE: ClassVar[str] = "on the CPU"
    """How the model runs if the machine lacks the device of the step, for notes of the plan."""

    null_input: Literal["null", "fail"] | None = None
    """What happens to a row if one of its inputs is null. `null`, the default: the output is null,
    as in SQL, and the row is counted as NullInput. `fail`: the row is a failed row."""
    empty_input: Literal["null", "fail", "compute"] | None = None
    """What happens to a row whose inputs are all empty: texts of white space only, or bytes, lists
    and arrays without elements. `null`, the default: the output is null, and the row is counted as
    EmptyInput. `fail`: the row is a failed row. `compute`: the model computes it."""
    non_finite: Literal["keep", "fail"] | None = None
    """What happens to a row if its output contains NaN or infinity. `keep`: the row is counted as
    NonFinite. `fail`: the row is a failed row. `fail` is the default for normalized embeddings, and
    for the embeddings of vllm and http."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Put the fields of base classes last, so that `runtime` comes first in documentation."""
        own = cls.__annotations__
        cls.__pydantic_fields__ = dict(
            sorted(cls.__pydantic_fields__.items(), key=lambda field: field[0] not in own)
        )
        cls.model_rebuild(force=True)

    @property
    def facts(self) -> StepFacts:
        inputs, output = (getattr(self, field) for field in ("inputs", "output"))
        source, factory = (getattr(self, field, None) for field in ("source", "factory"))
        names = ("runtime", "task", "arch", "name", "url")
        runtime, task, *others = (getattr(self, name, None) for name in names)
        return StepFacts(
            reads=set(inputs.values()),
            adds={output: self.output_type, **self.extra_outputs},
            result=output,
            summary=", ".join(filter(None, [runtime, task, source or factory, *others])),
            fix_of_when="",
            tunable=True,
            in_actors=True,
            modules=[factory] if factory else [],
            sources={"source": NamedSource(source, may_be_of_hub=bool(self.HUB_FILES))}
            if source
            else {},
            model_files=[*([source] if source else []), *self.extra_locations],
            storage=getattr(self, "storage", FROM_ENVIRONMENT),
            secrets=self.secret_variables,
        )

    @property
    def output_type(self) -> ColumnType | None:
        """Return the type of the output; None if it depends on the files of the model."""
        return None

    @property
    def extra_outputs(self) -> dict[str, ColumnType]:
        """Return the columns besides `output`, such as `details`, and their types. If there are
        any, the runtime returns a tuple for each row: the result, and the value of each column."""
        return {}

    @property
    def uses_texts(self) -> bool:
        """Return whether the model uses all inputs as texts, and converts other values to text."""
        return False

    @property
    def templates(self) -> list[str]:
        """Return the templates of the model, which have placeholders for inputs."""
        return []

    @property
    def secret_variables(self) -> list[str | None]:
        """Return the environment variables of secrets that fields name; None for unset fields."""
        return []

    @property
    def extra_locations(self) -> list[str]:
        """Return the paths or URIs of additional model files."""
        return []

    @property
    def padded_texts(self) -> tuple[str, ...]:
        """Return the columns whose texts the model pads to the longest text of a batch. Models that
        generate text have none: their time depends mainly on the generated text."""
        return ()

    @property
    def tokenized_inputs(self) -> tuple[str, ...]:
        """Return the inputs that tasks on CPUs convert to tokens; empty if the replicas do it."""
        return ()

    @property
    def prefix_columns(self) -> tuple[str, ...]:
        """Return the text columns of the prompt, in its order. Empty for a model that is not faster
        when successive prompts begin alike."""
        return ()

    @property
    def parameter_inputs(self) -> tuple[str, ...]:
        """Return the inputs that are settings of a row, such as an adapter, and may be null."""
        return ()

    @property
    def needs_finite(self) -> bool:
        """Return whether a row with NaN or infinity in its output fails by default."""
        return bool(getattr(self, "normalize", False))

    @property
    def pods(self) -> int:
        """Return the number of pods among which the GPUs of a replica are divided on a cluster."""
        return 1

    def check_pool(self, resources: Resources, batch_size: int | str | None) -> None:
        """Raise a validation error if the resources or the batch size do not fit the model."""

    @property
    def default_batch_size(self) -> int:
        """Return the batch size of a step without `batchSize`."""
        return MODEL_BATCH_SIZE


_NOT_ON_THE_HUB = "^([A-Za-z][A-Za-z0-9+.-]*://|/|[.][.]?/|~)"


def check_revision(source: str, revision: str | None) -> None:
    """Raise a validation error if there is a revision, but the source is a path or URI."""
    if revision is not None and re.match(_NOT_ON_THE_HUB, source):
        raise invalid(f"'revision' is for models of the Hub, and '{source}' is none. Remove it")


TooLong = Literal["fail", "truncate", "truncateLeft", "windows"]


class TextModel(RuntimeModel):
    """Base class of models that read texts."""

    too_long: TooLong | None = None
    """What happens to a text with more tokens than the model takes. `truncate`: its end is cut.
    `truncateLeft`: its beginning is cut. `windows`: it is divided into overlapping windows, and
    their results are combined. `fail`: the row is a failed row. By default, the end is cut, but for
    models that generate text, the row fails. Rows with a cut text are counted as TextCut."""


class WindowedModel(TextModel):
    """Base class of models that can combine their results for several windows of a text."""

    window_overlap: Annotated[int, Field(ge=0, le=65536)] | None = None
    """Number of tokens repeated from the end of the previous window. An eighth of it by default."""

    def check_overlap(self) -> None:
        """Raise a validation error if `windowOverlap` is set without windows."""
        if self.window_overlap is not None and self.too_long != "windows":
            raise invalid("windowOverlap is only for 'tooLong: windows'")


LABELED: dict[str, ColumnType] = {"label": "string", "score": "float32"}
"""A label with its score."""


class LabelModel(RuntimeModel):
    """Base class of models that may be classifiers."""

    score_output: ColumnName | None = None
    """A column for the score, if the model is a classifier. `output` is then the label, as a text
    instead of a struct of `label` and `score`."""

    @property
    def classifies(self) -> bool:
        """Return whether the result of a row is one label, with its score."""
        raise NotImplementedError

    @property
    def extra_outputs(self) -> dict[str, ColumnType]:
        score: dict[str, ColumnType] = {self.score_output: "float32"} if self.score_output else {}
        return {**super().extra_outputs, **score}

    def check_score(self) -> None:
        """Raise a validation error if `scoreOutput` is set without a score, or is the output."""
        if self.score_output is None:
            return
        if not self.classifies:
            problem = "scoreOutput is for classifiers, and not for topK. Remove it"
        elif self.score_output == getattr(self, "output", None):
            problem = "scoreOutput: this column is the output. Name another one"
        else:
            return
        raise invalid(problem)
