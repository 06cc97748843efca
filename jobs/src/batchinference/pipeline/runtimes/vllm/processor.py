"""Ray Data's processor for vLLM, set up for a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from batchinference.pipeline.runtimes.vllm.model_files import files_beside
from batchinference.pipeline.runtimes.vllm.prompt_images import GuardedImages
from batchinference.pipeline.runtimes.vllm.requests import parameters_of, result_of
from batchinference.pipeline.runtimes.vllm.row_codec import RESULT, ROW, opened
from batchinference.pipeline.runtimes.vllm.stages import (
    GuardedEngine,
    IsolatingStage,
    guarded,
    load_failure,
)
from batchinference.plan import Stage
from batchinference.plan.stages import BESIDE_CPUS, TASK_CPUS
from batchinference.spec.models import VllmModel

ENGINE = "vLLMEngineStage"
IMAGES = "PrepareMultimodalStage"
NO_GPUS = " (vLLM needs GPUs unless it was built for CPUs, and here are none for it)"
Selector = dict[str, str] | None


@dataclass(frozen=True)
class NodeSelectors:
    """Which nodes of a cluster the engine and the actors beside it go to; None for any."""

    engine: Selector
    beside: Selector


@dataclass(frozen=True)
class RetryOptions:
    """How often tasks and actors whose process died are run again, as Ray's arguments."""

    of_tasks: Mapping[str, int]
    of_actors: Mapping[str, int]


def config_of(stage: Stage, model: VllmModel) -> Any:
    """The processor's configuration."""
    size = stage.replicas
    replicas = (size.min, size.max) if size else (1, 1)
    beside = {"concurrency": (1, replicas[1]), "num_cpus": BESIDE_CPUS}
    chat = {"chat_template": model.chat_template, "chat_template_kwargs": model.chat_template_args}
    return vLLMEngineProcessorConfig(
        model_source=_source(stage, model),
        task_type=model.task,
        engine_kwargs=_engine(model),
        batch_size=stage.batch_size,
        concurrency=replicas,
        max_concurrent_batches=model.max_concurrent_batches,
        accelerator_type=stage.accelerator,
        placement_group_config={
            "bundle_per_worker": _bundle(stage, model),
            "strategy": _strategy(stage),
        },
        # whether the job goes on is decided where the row's name is known
        should_continue_on_error=True,
        prepare_multimodal_stage={"enabled": bool(model.images), **beside},
        chat_template_stage={"enabled": model.is_chat, **chat, **beside},
        tokenize_stage={"enabled": True, **beside},
        # the engine does it on its way, and only so can it stop at a word
        detokenize_stage={"enabled": False},
    )


def _source(stage: Stage, model: VllmModel) -> str:
    try:
        return files_beside(model)
    except Exception as error:
        raise load_failure(stage.name, model, error) from error


def _engine(model: VllmModel) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "tensor_parallel_size": model.parallelism.tensor,
        "pipeline_parallel_size": model.parallelism.pipeline,
    }
    if model.revision is not None:
        arguments |= {"revision": model.revision, "tokenizer_revision": model.revision}
    if model.adapter is not None:
        arguments["enable_lora"] = True
    return {**arguments, **model.engine}


def _bundle(stage: Stage, model: VllmModel) -> dict[str, float]:
    """What each GPU's worker takes: its share of the replica."""
    workers = model.parallelism.tensor * model.parallelism.pipeline
    return {"CPU": stage.cpus * stage.pods / workers, "GPU": stage.gpus / workers}


def _strategy(stage: Stage) -> str:
    """GPUs that share layers are on one node."""
    return "STRICT_PACK" if stage.pods == 1 else "PACK"


def processor_of(stage: Stage, model: VllmModel, nodes: NodeSelectors, tries: RetryOptions) -> Any:
    """The processor, with its operators on their nodes."""
    task = {"num_cpus": TASK_CPUS, "label_selector": nodes.beside, **tries.of_tasks}
    processor = build_processor(
        config_of(stage, model),
        preprocess=partial(opened, parameters_of(model)),
        postprocess=partial(_keep, result_of(model.task)),
        preprocess_map_kwargs=task,
        postprocess_map_kwargs=task,
    )
    for name in processor.list_stage_names():
        found = processor.get_stage_by_name(name)
        arguments = found.map_batches_kwargs
        arguments.update(tries.of_actors)
        arguments["label_selector"] = nodes.engine if name == ENGINE else nodes.beside
        if "ray_remote_args_fn" in arguments:
            arguments.update(_placed(stage, model, nodes.engine))
        # a copy: to set a field would have Ray derive all others anew
        fn = _guarded(found.fn, name, stage, model)
        processor.stages[name] = found.model_copy(update={"fn": fn})
    return processor


def _guarded(kind: Any, name: str, stage: Stage, model: VllmModel) -> Any:
    if name != ENGINE:
        guard = GuardedImages if name == IMAGES else IsolatingStage
        return guarded(kind, guard, stage.name, model, "")
    return guarded(kind, GuardedEngine, stage.name, model, "" if stage.gpus else NO_GPUS)


def _placed(stage: Stage, model: VllmModel, selector: Selector) -> dict[str, Any]:
    """Arguments by which an engine of several workers gets its placement group. As Ray makes it by
    itself, but on the nodes that it is meant for, and with no more CPUs than a bundle has."""
    bundle = _bundle(stage, model)
    kind = {f"accelerator_type:{stage.accelerator}": 0.001} if stage.accelerator else {}
    workers = model.parallelism.tensor * model.parallelism.pipeline
    group = partial(_in_group, [{**bundle, **kind}] * workers, _strategy(stage), selector)
    return {"num_cpus": bundle["CPU"], "ray_remote_args_fn": group}


def _in_group(bundles: list[dict[str, float]], strategy: str, selector: Selector) -> dict[str, Any]:
    selectors = [selector] * len(bundles) if selector else None
    group = ray.util.placement_group(bundles, strategy, bundle_label_selector=selectors)
    scheduling = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    return {"scheduling_strategy": scheduling}


def _keep(result: Callable[[Mapping[str, Any]], Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """The processor's postprocess: the row and its result, of all that the stages made."""
    return {ROW: answer[ROW], RESULT: result(answer)}
