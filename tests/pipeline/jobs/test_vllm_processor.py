"""What the vLLM processor of Ray Data receives: stages and arguments as Ray documents them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.vllm_processor import (
    IMAGES,
    GuardedImages,
    NodeSelectors,
    RetryOptions,
    processor_of,
)
from batchinference.plan.stages import Stage, stages_of
from support.documents.minimal import Document
from support.documents.parsed import steps_of
from support.documents.vllm_models import vllm_step
from support.models.hub_cache import add_to_hub_cache
from support.servers.openai import save_language_model

pytestmark = pytest.mark.usefixtures("ray")

NODES = NodeSelectors(engine={"group": "ask"}, helpers={"group": "cpu"})
TRIES = RetryOptions({"max_retries": 3}, {"max_task_retries": 3, "max_restarts": 4})
SHARED_CPU = {"num_cpus": 0.25, "label_selector": {"group": "cpu"}, **TRIES.of_actors}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("model")
    save_language_model(made)
    return str(made)


def stage_of(step: Document) -> Stage:
    (stage,) = stages_of(steps_of(step))
    return stage


def processor(step: Document, accelerator: str | None = None) -> Any:
    stage = replace(stage_of(step), accelerator=accelerator)
    model: Any = stage.steps[0].model
    return processor_of(stage, model, NODES, TRIES)


def arguments(built: Any, stage: str) -> dict[str, Any]:
    """Return the arguments of `map_batches` for a stage, except the actor pool."""
    given = dict(built.get_stage_by_name(stage).map_batches_kwargs)
    given.pop("compute")
    return given


def pool(built: Any, stage: str) -> tuple[int, int]:
    compute = built.get_stage_by_name(stage).map_batches_kwargs["compute"]
    return compute.min_size, compute.max_size


@pytest.mark.parametrize(
    ("fields", "stages"),
    [
        ({}, ["ChatTemplateStage", "TokenizeStage", "vLLMEngineStage"]),
        ({"chat": False}, ["TokenizeStage", "vLLMEngineStage"]),
        ({"task": "embed"}, ["TokenizeStage", "vLLMEngineStage"]),
        (
            {"inputs": {"photo": "image"}, "images": ["photo"], "prompt": "What?"},
            ["PrepareMultimodalStage", "ChatTemplateStage", "TokenizeStage", "vLLMEngineStage"],
        ),
    ],
    ids=["chat", "text", "embed", "images"],
)
def test_model_has_the_stages_that_its_task_needs(
    fields: dict[str, Any], stages: list[str], folder: str
) -> None:
    step = vllm_step(source=folder, **fields)
    built = processor(step)
    assert built.list_stage_names() == stages
    assert len(stage_of(step).helper_cpus) == len(stages) - 1, "the plan has CPUs for each"
    if IMAGES in stages:
        assert issubclass(built.get_stage_by_name(IMAGES).fn, GuardedImages)


def test_processor_has_an_engine_on_one_gpu(folder: str) -> None:
    step = vllm_step(source=folder, engine={"max_model_len": 512}, maxConcurrentBatches=4)
    step |= {"batchSize": 64, "replicas": {"min": 2, "max": 5}}
    step["resources"] = {"gpu": 1, "cpu": 3}
    built = processor(step, "L4")
    engine = built.get_stage_by_name("vLLMEngineStage")
    assert engine.fn_constructor_kwargs == {
        "batch_size": 64,
        "max_concurrent_batches": 4,
        "model": folder,
        "engine_kwargs": {
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "max_model_len": 512,
            "task_type": "generate",
            "distributed_executor_backend": "uni",
        },
        "task_type": "generate",
        "max_pending_requests": None,
        "dynamic_lora_loading_path": None,
        "should_continue_on_error": True,
        "log_engine_metrics": True,
    }
    assert pool(built, "vLLMEngineStage") == (2, 5)
    given = arguments(built, "vLLMEngineStage")
    assert given.items() >= {"num_gpus": 1, "num_cpus": 3, "max_concurrency": 4}.items()
    assert (given["label_selector"], given["accelerator_type"]) == ({"group": "ask"}, "L4")
    assert given.items() >= TRIES.of_actors.items()
    assert "ray_remote_args_fn" not in given


def test_processor_has_cpu_actors_next_to_the_engine(folder: str) -> None:
    template = "{{ messages[0].content }}"
    step = vllm_step(source=folder, chatTemplate=template, chatTemplateArgs={"thinking": False})
    built = processor({**step, "replicas": {"min": 2, "max": 5}})
    for name in ("ChatTemplateStage", "TokenizeStage"):
        assert pool(built, name) == (1, 5)
        assert arguments(built, name).items() >= SHARED_CPU.items()
    assert built.get_stage_by_name("ChatTemplateStage").fn_constructor_kwargs == {
        "model": folder,
        "chat_template": template,
        "chat_template_kwargs": {"thinking": False},
        "trust_remote_code": False,
    }


@pytest.mark.parametrize(
    ("tensor", "pipeline", "strategy", "cpus"), [(4, 1, "STRICT_PACK", 0.5), (2, 3, "PACK", 1.0)]
)
def test_engine_on_several_gpus_has_a_bundle_for_each(
    tensor: int,
    pipeline: int,
    strategy: str,
    cpus: float,
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parallelism = {"tensor": tensor, "pipeline": pipeline}
    step = vllm_step(source=folder, gpu=tensor * pipeline, parallelism=parallelism)
    step["resources"]["cpu"] = 2
    given = arguments(processor(step, "A100"), "vLLMEngineStage")
    assert (given["num_gpus"], given["num_cpus"]) == (0, cpus)
    assert given["label_selector"] == {"group": "ask"}
    asked: list[Any] = []

    def placement_group(*args: Any, **kwargs: Any) -> None:
        asked.append((args, kwargs))

    monkeypatch.setattr("ray.util.placement_group", placement_group)
    given["ray_remote_args_fn"]()
    bundle = {"CPU": cpus, "GPU": 1.0, "accelerator_type:A100": 0.001}
    count = tensor * pipeline
    selectors = {"bundle_label_selector": [{"group": "ask"}] * count}
    assert asked == [(([bundle] * count, strategy), selectors)]


def test_adapters_are_given_to_the_engine_as_folders(folder: str) -> None:
    fields = {"inputs": {"question": "text", "style": "style"}, "adapter": "style"}
    built = processor(vllm_step(source=folder, loraPath="s3://models/adapters", **fields))
    engine = built.get_stage_by_name("vLLMEngineStage").fn_constructor_kwargs
    assert engine["dynamic_lora_loading_path"] is None
    assert engine["engine_kwargs"]["enable_lora"] is True


def test_revision_is_passed_to_the_engine(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    add_to_hub_cache(tmp_path, "org/model", "v2", Path(folder))
    built = processor(vllm_step(revision="v2"))
    engine = built.get_stage_by_name("vLLMEngineStage").fn_constructor_kwargs["engine_kwargs"]
    assert (engine["revision"], engine["tokenizer_revision"]) == ("v2", "v2")


def test_unavailable_revision_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelLoad, match="step 'ask': the model 'org/model' cannot be loaded: "):
        processor(vllm_step(revision="v3"))


def test_stages_have_the_names_of_rays_operators(folder: str) -> None:
    built = processor(vllm_step(source=folder))
    names = [built.get_stage_by_name(name).fn.__name__ for name in built.list_stage_names()]
    assert names == ["ChatTemplateUDF", "TokenizeUDF", "vLLMEngineStageUDF"]
