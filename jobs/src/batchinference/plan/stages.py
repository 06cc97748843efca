"""Stages: what Ray Data runs as one operator.

Steps that only touch columns run with their neighbours in one task. A model or a class gets an
actor pool of its own, and no CPU work joins it, so that the next batch is prepared while the
device computes. Only dropping columns joins a pool: pixels that nobody reads again stay there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from batchinference.plan.pruning import drop_early
from batchinference.spec.profiles import GPU
from batchinference.spec.resources import Resources
from batchinference.spec.steps import Replicas, Step

SEARCH_ROWS = 256
"""The most rows of a batch that `batchSize: auto` tries."""
TASK_CPUS = 1.0
"""CPUs of a task that reads or runs column steps."""
WRITE_CPUS = 0.25
"""CPUs of a write task. It mostly waits for storage, and must never have to wait for a whole CPU
until all reading is done: what is not written is not safe."""
BESIDE_CPUS = 0.25
"""CPUs of an actor that prepares rows for a model's own actors, and mostly waits for them."""
Custom = tuple[tuple[str, int], ...]
"""Custom resources by Ray's names of them, and how many of each."""


@dataclass(frozen=True)
class Stage:
    """One operator: its steps, and what each of its tasks or actors takes.

    `replicas` is None for tasks, which start wherever CPUs are free.
    `batch_size` is in rows; None stands for a whole block. `kinds` are the resources that are
    devices, with PyTorch's name of the kind of each. On a cluster a replica has its GPUs in so many
    `pods`, each with its CPUs and memory. `beside` has a number for each pool of actors that
    prepares rows for this one: the CPUs of one of them.
    """

    name: str
    steps: tuple[Step, ...]
    cpus: float = TASK_CPUS
    gpus: int = 0
    memory: str | None = None
    batch_size: int | None = None
    replicas: Replicas | None = None
    custom: Custom = ()
    accelerator: str | None = None
    kinds: tuple[tuple[str, str], ...] = ((GPU, "cuda"),)
    pods: int = 1
    beside: tuple[float, ...] = ()

    @property
    def resources(self) -> dict[str, int]:
        """GPUs and custom resources of one replica, by Ray's names of them."""
        return {GPU: self.gpus, **dict(self.custom)} if self.gpus else dict(self.custom)

    @property
    def is_llm(self) -> bool:
        """Whether Ray Data runs it by a processor of its own, in several operators."""
        model = self.steps[0].model if self.steps else None
        return model is not None and model.runtime == "vllm"

    @property
    def rows_per_block(self) -> int | None:
        """Rows of the blocks that the stage cuts; None for one that does not."""
        cut = self.steps[0].repartition if self.steps else None
        return cut.rows_per_block if cut else None


def stages_of(steps: list[Step]) -> list[Stage]:
    """The steps as stages, in their order, with columns dropped as early as possible."""
    stages: list[Stage] = []
    for step in drop_early(steps):
        stage = _stage(step)
        if stages and _joins(stage, stages[-1]):
            stages[-1] = replace(stages[-1], steps=(*stages[-1].steps, step))
        else:
            stages.append(stage)
    return stages


def _stage(step: Step) -> Stage:
    resources = step.resources or Resources()
    if step.model or (step.python and step.python.is_class):
        return Stage(
            step.name,
            (step,),
            resources.cpu,
            resources.gpu,
            resources.memory,
            _batch_size(step),
            step.replicas or Replicas(),
            pods=step.model.pods if step.model else 1,
            beside=(BESIDE_CPUS,) * (step.model.actors_beside if step.model else 0),
        )
    return Stage(step.name, (step,), resources.cpu)


def _batch_size(step: Step) -> int | None:
    if step.batch_size == "auto":
        return SEARCH_ROWS
    return step.batch_size or (step.model.default_batch_size if step.model else None)


def _joins(stage: Stage, previous: Stage) -> bool:
    only_drops = all(step.drop_columns or step.select_columns for step in stage.steps)
    if stage.rows_per_block or previous.rows_per_block:
        return False
    both_tasks = stage.replicas is None and previous.replicas is None
    return only_drops or (both_tasks and stage.cpus == previous.cpus)
