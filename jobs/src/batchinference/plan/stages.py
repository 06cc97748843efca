"""Groups steps into stages with their devices. Ray Data runs each stage as one operator.

Adjacent steps without a model or class run together in one task if they request the same number of
CPUs. Each model or class gets its own actor pool. Other steps that compute do not run in that pool:
tasks prepare the next batch while the device computes. Steps that drop or select columns do run in
it, so images that no later step reads never leave the actor. If no stage needs a pool, each task
runs all stages: see `Plan.single_segment`."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from batchinference.spec.defaults_merge import with_defaults
from batchinference.spec.models import Model
from batchinference.spec.profiles import GPU, Profile, known_profiles
from batchinference.spec.resources import Resources
from batchinference.spec.steps import Replicas, Step

MIN_WRITERS, CPUS_PER_WRITER = 2, 2


def writers(cpus: float) -> int:
    """Return the maximum number of concurrent write tasks for this number of CPUs. With this limit,
    Ray Data reserves only the CPUs that these tasks can use. By default, it reserves up to a
    quarter of all CPUs for an operator. Of three CPUs, only one would then remain for computing."""
    return max(MIN_WRITERS, int(cpus / CPUS_PER_WRITER))


def cpus_with_writers(cpus: int, others: float = 0.0) -> int:
    """Return the smallest number of CPUs for Ray that leaves `cpus` CPUs for other tasks. Write
    tasks, and `others` (a fraction of a CPU), need the rest."""
    free = (total - writers(total) * WRITE_CPUS - others for total in count(cpus))
    return next(cpus + more for more, left in enumerate(free) if left >= cpus)


SEARCH_ROWS = 256
"""Largest batch size in rows that `batchSize: auto` tries."""
PREPARED_ROWS = 1024
"""Rows of a batch of the tasks that convert inputs to tokens (`Stage.prepares`)."""
TASK_CPUS = 1.0
"""CPUs of a task that reads, or that runs steps without a model or class."""
WRITE_CPUS = 0.25
"""CPUs of a write task, which mostly waits for storage. A task with a whole CPU might start only
after all reading is done. A crash would lose all rows that are not written yet."""
Custom = tuple[tuple[str, int], ...]
"""Custom resources: pairs of Ray's resource name and the number of units."""


@dataclass(frozen=True)
class Stage:
    """One operator of Ray Data: its steps, and the resources of each of its tasks or actors.

    `replicas` is None for tasks, which start wherever CPUs are free. `batch_size` is in rows; None
    means a whole block. `kinds` pairs each resource that is a device with PyTorch's device type.

    On a cluster, a replica may have several `pods`, which share its GPUs. Each of them has `cpus`
    and `memory`. Otherwise, a pod has up to `per_pod` replicas."""

    name: str
    steps: tuple[Step, ...]
    cpus: float = TASK_CPUS
    gpus: float = 0
    memory: str | None = None
    batch_size: int | None = None
    replicas: Replicas | None = None
    custom: Custom = ()
    accelerator: str | None = None
    kinds: tuple[tuple[str, str], ...] = ((GPU, "cuda"),)
    pods: int = 1
    per_pod: int = 1
    searches: bool = False
    """Whether the number of replicas per GPU, up to `per_pod`, is measured (`auto`)."""
    prepares: bool = False
    """Whether the tasks only convert inputs to tokens for the pool of the same step."""

    @property
    def resources(self) -> dict[str, float]:
        """The GPUs and custom resources of one replica, by Ray's resource names."""
        return {GPU: self.gpus, **dict(self.custom)} if self.gpus else dict(self.custom)

    @property
    def gpus_of_pod(self) -> int:
        """The number of GPUs of each pod. A fraction of a GPU is on a single GPU."""
        if self.searches:
            return 1
        per_device = Resources.model_construct(gpu=self.gpus).per_device
        return math.ceil(self.per_pod * math.ceil(self.gpus) / per_device) // self.pods

    @property
    def model(self) -> Model | None:
        """The model that the stage runs, if any."""
        return self.steps[0].model if self.steps and not self.prepares else None

    @property
    def padded_texts(self) -> tuple[str, ...]:
        """The text columns that the model pads to the longest text of a batch."""
        return self.model.padded_texts if self.model else ()

    @property
    def batches_itself(self) -> bool:
        """Whether an engine or endpoint runs the model, and combines rows of several batches."""
        return self.model is not None and not self.model.IN_PROCESS

    @property
    def skips_rows(self) -> bool:
        """Whether the first step may compute only some of the rows."""
        return bool(self.steps) and self.steps[0].skips_rows

    @property
    def needs_pool(self) -> bool:
        """Whether the stage batches itself, has `replicas`, or requests more than CPUs."""
        step = self.steps[0] if self.steps else None
        if self.replicas is None or step is None:
            return False
        resources = step.resources or Resources()
        return bool(step.replicas) or resources.has_own_pods or self.batches_itself


def stages_of(steps: list[Step]) -> list[Stage]:
    """Return the stages of the steps, in order. Columns are dropped as early as possible."""
    stages: list[Stage] = []
    for step in drop_early(steps):
        stage = _stage(step)
        if stages and _joins(stage, stages[-1]):
            stages[-1] = replace(stages[-1], steps=(*stages[-1].steps, step))
        else:
            stages.append(stage)
    return stages


def with_preparations(stages: Iterable[Stage]) -> Iterator[Stage]:
    """Yield the stages. A pool whose model allows it gets a stage of the same name before it. The
    tasks of this stage convert the inputs of the model to tokens (`Stage.prepares`)."""
    for stage in stages:
        if stage.replicas is not None and stage.model and stage.model.tokenized_inputs:
            step = stage.steps[0].model_copy(update={"batch_size": PREPARED_ROWS})
            yield Stage(stage.name, (step,), prepares=True)
        yield stage


def _stage(step: Step) -> Stage:
    resources = step.resources or Resources()
    if step.facts.in_actors:
        return Stage(
            step.name,
            (step,),
            resources.cpu,
            resources.gpu,
            resources.memory,
            _batch_size(step),
            step.replicas or Replicas(),
            pods=step.model.pods if step.model else 1,
            per_pod=step.max_per_pod if resources.has_own_pods else 1,
            searches=step.replicas_per_device == "auto",
        )
    return Stage(step.name, (step,), resources.cpu)


def _batch_size(step: Step) -> int | None:
    if step.batch_size == "auto":
        return SEARCH_ROWS
    return step.batch_size or (step.model.default_batch_size if step.model else None)


def _joins(stage: Stage, previous: Stage) -> bool:
    """Return whether the steps of a stage run in the tasks or actors of the previous stage."""
    only_drops = all(step.facts.drops or step.facts.selects for step in stage.steps)
    both_tasks = stage.replicas is None and previous.replicas is None
    return only_drops or (both_tasks and stage.cpus == previous.cpus)


def drop_early(steps: list[Step]) -> list[Step]:
    """Return the steps with each column dropped right after the last step that needs it. The output
    is the same. No drop moves before a step with user code, which may read every column. For
    example, if the model reads `image` and the filter does not:

        [model, filter, {dropColumns: [image]}] becomes [model, {dropColumns: [image]}, filter]"""
    result: list[_Placed] = []
    for step in steps:
        for column in step.facts.drops:
            _insert_drop(result, step, column)
        if not step.facts.drops:
            result.append(_Placed(step, {*step.facts.reads, *step.facts.columns_added}))
    return [placed.result for placed in result]


@dataclass
class _Placed:
    """A step with the columns that it reads, adds or drops."""

    step: Step
    columns: set[str]
    dropped: list[str] = field(default_factory=list)

    @property
    def result(self) -> Step:
        update = {self.step.kind: self.dropped}
        return self.step.model_copy(update=update) if self.dropped else self.step


def _insert_drop(steps: list[_Placed], drop: Step, column: str) -> None:
    """Drop a column after the last step that needs it, in a drop step there or in a new one."""
    index = len(steps)
    while index > 0 and not (
        steps[index - 1].step.facts.user_code or column in steps[index - 1].columns
    ):
        index -= 1
    if not (index < len(steps) and steps[index].dropped):
        steps.insert(index, _Placed(drop, set()))
    steps[index].dropped.append(column)
    steps[index].columns.add(column)


Profiles = Mapping[str, Profile]


def with_devices(stage: Stage, profiles: Profiles) -> Stage:
    """Return the stage with its custom resources, accelerator type and PyTorch device types."""
    resources = stage.steps[0].resources if stage.replicas else None
    if resources is None:
        return stage
    custom = tuple(sorted(resources.custom.items()))
    choices = profiles_of(stage.gpus, custom, resources.accelerator_type, profiles)
    kinds = tuple((name, profile.device) for name, profile in choices.items() if profile.device)
    return replace(stage, custom=custom, accelerator=resources.accelerator_type, kinds=kinds)


def profiles_of(
    gpus: float, custom: Custom, accelerator: str | None, profiles: Profiles
) -> dict[str, Profile]:
    """Return the profile of each requested resource by Ray's resource name, GPUs first. A resource
    without a profile gets an empty one. The profile of the accelerator type overrides that of the
    first device. Without a device, it overrides that of the first resource."""
    known = known_profiles(profiles)
    names = [GPU, *dict(custom)] if gpus else list(dict(custom))
    chosen = {name: known.get(name, Profile()) for name in names}
    if accelerator in known and names:
        device = next((name for name in names if chosen[name].device), names[0])
        chosen[device] = with_defaults(known[accelerator], chosen[device])
    return chosen
