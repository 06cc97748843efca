"""Configures Ray Data's vLLM processor for a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from batchinference.pipeline.runtimes.model_files import files_beside
from batchinference.pipeline.runtimes.vllm.row_codec import (
    RESULT,
    ROW,
    opened,
    parameters_of,
    result_of,
)
from batchinference.pipeline.runtimes.vllm.stages import (
    GuardedEngine,
    GuardedImages,
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
    """Label selectors for the nodes of the engine and of its helper actors; None for any node."""

    engine: Selector
    beside: Selector


@dataclass(frozen=True)
class RetryOptions:
    """Ray arguments that set how often tasks and actors are retried after their process died."""

    of_tasks: Mapping[str, int]
    of_actors: Mapping[str, int]


def config_of(stage: Stage, model: VllmModel) -> Any:
    """Return the configuration of Ray Data's vLLM processor for a stage."""
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
        # decode_rows decides whether the job continues: only it knows the id of the failed row
        should_continue_on_error=True,
        prepare_multimodal_stage={"enabled": bool(model.images), **beside},
        chat_template_stage={"enabled": model.is_chat, **chat, **beside},
        tokenize_stage={"enabled": True, **beside},
        # the engine detokenizes itself, which it needs to do to support stop strings
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
    """Return the resources of each GPU worker: its share of the replica's CPUs and GPUs."""
    workers = model.parallelism.tensor * model.parallelism.pipeline
    return {"CPU": stage.cpus * stage.pods / workers, "GPU": stage.gpus / workers}


def _strategy(stage: Stage) -> str:
    """Return the placement strategy that keeps GPUs that share layers on one node."""
    return "STRICT_PACK" if stage.pods == 1 else "PACK"


def processor_of(stage: Stage, model: VllmModel, nodes: NodeSelectors, tries: RetryOptions) -> Any:
    """Return the processor, with label selectors and retry options on each operator."""
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
        # copy the stage: assigning a field makes Ray validate and derive all fields again
        fn = _guarded(found.fn, name, stage, model)
        processor.stages[name] = found.model_copy(update={"fn": fn})
    return processor


def _guarded(kind: Any, name: str, stage: Stage, model: VllmModel) -> Any:
    if name != ENGINE:
        guard = GuardedImages if name == IMAGES else IsolatingStage
        return guarded(kind, guard, stage.name, model, "")
    return guarded(kind, GuardedEngine, stage.name, model, "" if stage.gpus else NO_GPUS)


def _placed(stage: Stage, model: VllmModel, selector: Selector) -> dict[str, Any]:
    """Return the Ray arguments that create the placement group of an engine with several workers.

    The group is the same as Ray's default, but it is restricted to the engine's nodes, and the
    actor requests no more CPUs than one bundle has.
    """
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
    """Return only the row and its result, as the processor's postprocess function."""
    return {ROW: answer[ROW], RESULT: result(answer)}
