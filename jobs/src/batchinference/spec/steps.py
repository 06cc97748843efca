"""The model of a step: its action, such as `model` or `filter`, and the settings of all steps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from batchinference.spec.base import DNS_LABEL, ColumnName, Columns, SpecModel, invalid
from batchinference.spec.chunk import Chunk
from batchinference.spec.decode import Decode
from batchinference.spec.expression import Condition, Expression, columns_read_by, parse_expression
from batchinference.spec.models import Model
from batchinference.spec.python_step import PythonStep
from batchinference.spec.quantities import Quantity
from batchinference.spec.resources import Resources
from batchinference.spec.step_facts import StepFacts, StepSettings
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage
from batchinference.spec.uri_fields import Uri
from batchinference.spec.value_fixes import above_max, number_fix


class Cascade(SpecModel):
    """Runs a step for the first rows, and learns at which score the result of an earlier step is
    good enough. The step skips later rows with at least this score, as if `when` was not true."""

    score: Condition
    """A number that says how sure the earlier step is, as an expression such as `cheap.score`. The
    step runs for all rows whose score is null or NaN."""
    agree: Condition
    """Whether the results of both steps are the same: a condition on columns of the output, such as
    `cheap.label == expensive.label`."""
    precision: Annotated[float, Field(gt=0, lt=1), *Quantity]
    """The fraction of the skipped rows for which `agree` must be true, such as 0.95."""
    rows: Annotated[int, Field(ge=50, le=10**6)] = 1000
    """The number of first rows from which the job learns."""

    def condition(self, threshold: float) -> str:
        """Return the condition under which the step runs for a row, with this threshold."""
        return f"({self.score}) is None or not ({self.score}) >= {threshold!r}"


Count = Annotated[int, Field(ge=1, le=10000)]
MAX_BATCH = 1_000_000


def _refuse_divided(value: object) -> object:
    """Return the value. Raises a validation error if YAML divided it at a comma: {a: f(b, c)}."""
    name, joined = "", ""
    for key, text in value.items() if isinstance(value, dict) else ():
        if text is not None:
            name, joined = str(key), text if isinstance(text, str) else ""
        elif _open_brackets(joined) > 0:
            joined += f", {key}"
            if _open_brackets(joined) == 0:
                raise invalid(f"in {{...}}, a comma ends a value. {_quoted(name, joined)}")
    return value


def _open_brackets(text: str) -> int:
    return sum((character in "([") - (character in ")]") for character in text)


def _quoted(name: str, text: str) -> str:
    try:
        parse_expression(text)
    except ValueError as error:
        return f"The whole text, {text[:60]}, is also wrong: {error}"
    return f"Write the expression in quotes: {name}: {json.dumps(text, ensure_ascii=False)}"


AddedColumns = Annotated[
    dict[ColumnName, Expression],
    Field(min_length=1, max_length=256),
    BeforeValidator(_refuse_divided),
]
NewNames = Annotated[dict[ColumnName, ColumnName], Field(min_length=1, max_length=256)]


def _number_or_auto(value: object, handler: ValidatorFunctionWrapHandler) -> int | str:
    """Return the validated value. Raises a single error instead of one per type of the union."""
    try:
        size: int | str = handler(value)
    except ValidationError:
        expected = f"expected a whole number from 1 to {MAX_BATCH}, or 'auto'"
        fix = number_fix(value, integer=True) if isinstance(value, str | float) else ""
        if not re.fullmatch(r"\. Write [1-9][0-9]{0,5}", fix):
            fix = ". Write a number such as 32"
        raise invalid(f"{expected}{fix}", "batch_size_type") from None
    return size


BatchSize = Annotated[
    Annotated[int, Field(ge=1, le=MAX_BATCH)] | Literal["auto"], WrapValidator(_number_or_auto)
]


class LabelFromPath(StepSettings):
    """Adds a column with a part of the path of the file of each row."""

    column: ColumnName
    """The column to add."""
    index: Annotated[int, Field(ge=-100, le=100)]
    """The index of the part, as in Python's `path.split('/')[index]`. -2 is the directory."""

    @property
    def facts(self) -> StepFacts:
        return StepFacts(
            reads={"path"}, needs_paths=True, adds={self.column: "string"}, fix_of_when=""
        )


class Explode(StepSettings):
    """Creates one row for each element of a list."""

    column: ColumnName
    """The column with lists, which are replaced by elements. Rows without elements are filtered."""

    @property
    def facts(self) -> StepFacts:
        return StepFacts(reads={self.column}, adds={self.column: None})


class Replicas(SpecModel):
    """The number of replicas: concurrent copies of the model or class."""

    min: Count = 1
    """Minimum number of replicas, which must be ready before the first batch."""
    max: Count = 1
    """Maximum number of replicas."""

    def _check(self) -> None:
        if self.min > self.max:
            raise invalid(above_max(self.min, self.max))


class Cache(SpecModel):
    """A folder with results of a model, which several jobs share."""

    path: Uri
    """The path of a folder, or an object store prefix. Whoever can write there can change results
    of the jobs that use the cache. Jobs never delete results: use a lifecycle rule of the store."""
    storage: Storage = FROM_ENVIRONMENT
    """How to access the object store."""


_POOL = ("batch_size", "replicas", "replicas_per_pod", "replicas_per_device", "resources")
"""The fields about batches, replicas and resources of a step."""
_SETTINGS = ("name", "when", "cascade", "dedupe", "cache", *_POOL)
"""The fields of a step that are not an action."""
MAX_SHARING = 4
"""The maximum number of replicas of `replicasPerDevice: auto` without `replicasPerPod`."""
_ONLY_MODELS = "'{name}' is for a model: other steps may have effects. Remove it"
_FACTS: dict[str, Callable[[Any], StepFacts]] = {
    "filter": lambda condition: StepFacts(
        reads=columns_read_by(condition),
        expressions=[condition],
        summary=str(condition),
        fix_of_when="Add its condition to the filter",
    ),
    "add_columns": lambda added: StepFacts(
        reads=set().union(*map(columns_read_by, added.values())),
        adds=dict.fromkeys(added),
        expressions=list(added.values()),
        fix_of_when="",
    ),
    "select_columns": lambda names: StepFacts(reads=names, selects=names),
    "drop_columns": lambda names: StepFacts(reads=names, drops=names),
    "rename_columns": lambda names: StepFacts(reads=names, renames=names),
}
"""The facts about kinds of steps whose settings have no class of their own."""


class Step(SpecModel):
    """One step, with exactly one action, such as `model`, `python` or `filter`."""

    name: Annotated[str, Field(pattern=DNS_LABEL, max_length=40)]
    """The name of the step in reports, errors and worker groups. It cannot be `read` or `write`."""
    when: Condition | None = None
    """Run the step only for rows for which this expression is true, in the language of `filter`. If
    it is false or null, the row is counted as Skipped. A column that the step adds is then null,
    and a column that it replaces keeps its value. For model, python, addColumns, decode and
    labelFromPath."""
    cascade: Cascade | None = None
    """Learn from the first rows at which score an earlier result is good enough, and skip rows with
    such a score. For a step without `when`."""
    model: Model | None = None
    """Run a model on each batch."""
    python: PythonStep | None = None
    """Run your own function or class on each batch."""
    filter: Condition | None = None
    """Keep the rows for which this expression is true. Rows for which it is null are filtered out.
    An expression uses columns, comparisons, arithmetic, `and`, `or`, `not`, `in`, `a if b else c`
    and `is None` as in Python. Its functions are len, lower, upper, strip, abs, round, int, float,
    str, startswith, endswith, contains and matches. `a.b` or `a['b']` reads a field of a struct,
    and `a[0]` an item of a list. Use col('NAME') for a column whose name is not an identifier."""
    add_columns: AddedColumns | None = None
    """Add or replace columns: `name: expression`, in the language of `filter`. An expression may be
    a constant, such as `"'web'"`. All expressions read the columns as they are before the step."""
    decode: Decode | None = None
    """Decode a column of bytes: images, audio, text or JSON."""
    label_from_path: LabelFromPath | None = None
    """Add a column with a part of the path of the file."""
    select_columns: Columns | None = None
    """Keep only these columns."""
    drop_columns: Columns | None = None
    """Drop these columns."""
    rename_columns: NewNames | None = None
    """Rename columns: `old: new`."""
    explode: Explode | None = None
    """Create one row for each element of a list."""
    chunk: Chunk | None = None
    """Divide long texts into chunks, each in its own row."""
    batch_size: BatchSize | None = None
    """Number of rows per batch, for model and python. The default is 32 for a model, 16 for the
    runtime http, and otherwise a whole block. `auto` searches for the fastest size with the first
    batches. A replica that runs out of memory halves its batch size."""
    replicas: Replicas | None = None
    """The number of replicas of a model or a python class. Each replica is an actor. Without this
    field, a step with GPUs, memory or custom resources, vLLM or an HTTP endpoint has one replica.
    Any other step has as many copies as the CPUs can run. They are tasks if the whole job can run
    in tasks."""
    replicas_per_pod: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of replicas in one pod, which has the CPUs, memory and devices for all of them. By
    default 1, or as many as share a GPU. Local runs ignore it."""
    replicas_per_device: Literal["auto"] | None = None
    """`auto` measures how many replicas are fastest on one GPU. It adds replicas while each makes
    the GPU at least 10 % faster, up to `replicasPerPod` (here 4 by default). For `gpu: 1`. For a
    fixed number, set `gpu` to a fraction instead."""
    resources: Resources | None = None
    """The resources of one replica of a model or python step."""
    dedupe: bool | None = None
    """For a model: whether rows with equal inputs are computed only once. By default, they are not.
    Each process reuses its latest results, up to about 128 MiB. With a random `sampling`, rows with
    equal inputs then have equal results."""
    cache: Cache | None = None
    """Reuse the results of other jobs with the same model and settings, and store those of this job
    for others. `cache` includes `dedupe`."""

    @classmethod
    def kinds(cls) -> list[str]:
        """Return the names of all fields that are an action, such as `add_columns`."""
        return [name for name in cls.model_fields if name not in _SETTINGS]

    @property
    def kind(self) -> str:
        """Return the name of the field that is the action of this step, such as `add_columns`."""
        return next(kind for kind in self.kinds() if getattr(self, kind) is not None)

    @property
    def skips_rows(self) -> bool:
        """Whether the step may skip rows. A `cascade` counts only after it has become `when`."""
        return bool(self.when or self.dedupe or self.cache)

    @property
    def facts(self) -> StepFacts:
        """Return the facts about this step, including those of its condition."""
        action = getattr(self, self.kind)
        facts: StepFacts = _FACTS[self.kind](action) if self.kind in _FACTS else action.facts
        if (condition := self.condition) is None:
            return facts
        return replace(
            facts,
            reads={*facts.reads, *columns_read_by(condition)},
            expressions=[*facts.expressions, condition],
            summary=facts.summary and f"{facts.summary}, when {condition}",
        )

    @property
    def condition(self) -> str | None:
        """Return the condition of the rows for which the step runs; None if it runs for all. The
        condition of a cascade has an arbitrary threshold, because the real one is learned later."""
        return self.cascade.condition(0.5) if self.cascade else self.when

    def with_sources(self, uris: Mapping[str, str]) -> Step:
        """Return a copy with the paths and addresses `uris`, by field as in `facts.sources`."""
        action = getattr(self, self.kind)
        update: dict[str, Any] = {}
        for field, uri in uris.items():
            name, _, key = field.partition(".")
            update[name] = {**update.get(name, getattr(action, name)), key: uri} if key else uri
        return self.model_copy(update={self.kind: action.model_copy(update=update)})

    @model_validator(mode="before")
    @classmethod
    def _check_divided(cls, value: object) -> object:
        return _refuse_divided(value)

    def _check(self) -> None:
        actions = [to_alias(kind) for kind in self.kinds() if getattr(self, kind) is not None]
        if len(actions) != 1:
            message = _number_of_actions(self.name, actions)
            raise invalid(message)
        if self.condition is not None:
            self._check_when(actions[0])
        if not self.facts.tunable:
            self._check_no_pool(actions[0])
        elif not self.facts.in_actors:
            self._check_tasks(self.facts.why_in_tasks)
        else:
            self._check_sharing(self.resources or Resources(), self.replicas or Replicas())
        if self.model is None and (self.dedupe or self.cache):
            name = "dedupe" if self.dedupe else "cache"
            raise invalid(_ONLY_MODELS.format(name=name))
        if self.model is not None:
            self.model.check_pool(self.resources or Resources(), self.batch_size)
        if self.rename_columns is not None:
            _check_new_names(self.rename_columns)

    def _check_when(self, kind: str) -> None:
        if self.when is not None and self.cascade is not None:
            raise invalid("a step has 'when' or 'cascade'. Remove one")
        if fix := self.facts.fix_of_when:
            field = "cascade" if self.cascade else "when"
            raise invalid(f"'{field}' does not apply to this {kind} step. {fix}")

    def _check_sharing(self, resources: Resources, replicas: Replicas) -> None:
        """Raise a validation error if replicas cannot share a pod or a device as requested."""
        several_pods = self.model is not None and self.model.pods > 1
        engine = self.model is not None and not self.model.IN_PROCESS
        problem = ""
        if self.replicas_per_pod is not None:
            if not resources.has_own_pods:
                problem = "replicasPerPod: only steps with 'gpu', 'memory' or 'custom' have pods"
            elif several_pods:
                problem = "replicasPerPod: a replica needs several pods. Remove it"
            elif self.replicas_per_pod > replicas.max:
                problem = f"replicasPerPod: {self.replicas_per_pod} is above replicas.max "
                problem += f"({replicas.max}). Raise replicas.max, or lower replicasPerPod"
        if self.replicas_per_device is not None and not problem:
            if resources.gpu != 1 or engine:
                problem = "replicasPerDevice: needs 'gpu: 1', and cannot be used with an engine"
            elif self.max_per_pod < 2:
                problem = "replicasPerDevice: there is only one replica. Raise replicas.max"
        if problem:
            raise invalid(problem)

    @property
    def max_per_pod(self) -> int:
        """Return the maximum number of replicas in a pod. A pod has resources for all of them."""
        resources, replicas = self.resources or Resources(), self.replicas or Replicas()
        default = MAX_SHARING if self.replicas_per_device else resources.per_device
        return self.replicas_per_pod or min(default, replicas.max)

    def _check_no_pool(self, kind: str) -> None:
        for name in _POOL:
            if getattr(self, name) is not None:
                raise invalid(f"'{to_alias(name)}' does not apply to a {kind} step. Remove it")

    def _check_tasks(self, what: str) -> None:
        resources = self.resources or Resources()
        requested = {"replicas": self.replicas, "gpu": resources.gpu, "memory": resources.memory,
                     "custom": resources.custom, "replicasPerPod": self.replicas_per_pod,
                     "replicasPerDevice": self.replicas_per_device}  # fmt: skip
        for field in (field for field, value in requested.items() if value):
            raise invalid(f"'{field}' is for a class, and {what}")


def _number_of_actions(step: str, actions: list[str]) -> str:
    """Return the message about a step without an action, or with several."""
    if not actions:
        kinds = ", ".join(map(to_alias, Step.kinds()))
        return f"step '{step}' has no action. Add one of {kinds}"
    others = " and ".join(actions[1:])
    has = " and ".join(actions)
    return f"step '{step}' has {has}, but a step has one action. Move {others} to another step"


def _check_new_names(new_names: dict[str, str]) -> None:
    names = list(new_names.values())
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise invalid(f"two columns are renamed to '{duplicates[0]}'. Choose another name for one")


def to_alias(field: str) -> str:
    """Return the YAML name of a field, such as `addColumns` for `add_columns`, or of a field and a
    key, such as `constructorArgs.key`."""
    name, dot, key = field.partition(".")
    return f"{to_camel(name)}{dot}{key}"
