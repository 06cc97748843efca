"""The arguments of vLLM's engine: their values for a model, and the check of their names."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.model_files import engine_source
from batchinference.spec.models import VllmModel
from batchinference.spec.problems import did_you_mean

MEMORY_UTILIZATION = 0.9
"""The fraction of the memory of a GPU for all replicas that share it."""


def check_engine_arguments(model: VllmModel) -> None:
    """Raise ModelLoad if the installed vLLM lacks one of the engine arguments of a model."""
    known = {*fields_of("engine.arg_utils", "EngineArgs", "AsyncEngineArgs")}
    for name in model.engine if known else ():
        if name not in known:
            similar = [other for other in known if other.startswith(name.partition("_")[0])]
            raise ModelLoad(f"engine: vLLM has no argument '{name}'{did_you_mean(name, similar)}")


def arguments_of(model: VllmModel, share: float = 1.0) -> dict[str, Any]:
    """Return the arguments of vLLM's engine. They name no distributed backend, so that vLLM uses
    the GPUs of this pod or placement group. `share` is the replica's fraction of a GPU's memory."""
    pooling = {"runner": "pooling", "convert": "embed" if model.task == "embed" else "classify"}
    arguments: dict[str, Any] = {
        "model": engine_source(model),
        "tensor_parallel_size": model.parallelism.tensor,
        "pipeline_parallel_size": model.parallelism.pipeline,
        "disable_log_stats": True,
        **({"runner": "generate"} if model.task == "generate" else pooling),
    }
    if model.revision is not None:
        arguments |= {"revision": model.revision, "tokenizer_revision": model.revision}
    if model.adapter is not None:
        arguments["enable_lora"] = True
    if share < 1:
        arguments["gpu_memory_utilization"] = round(MEMORY_UTILIZATION * share, 4)
    return {**arguments, **model.engine}


def fields_of(module: str, *names: str) -> dict[str, str]:
    """Return the fields of classes of the installed vLLM, and their types. Return an empty dict if
    vLLM or the module is missing. Reads the source, because an import takes up to minutes."""
    (package,) = getattr(find_spec("vllm"), "submodule_search_locations", None) or [""]
    source = Path(package, *module.split(".")).with_suffix(".py")
    if not source.exists():
        return {}
    tree = ast.parse(source.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if getattr(node, "name", None) in names]
    body = [node for each in classes for node in getattr(each, "body", ())]
    fields = [node for node in body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(field.target): ast.unparse(field.annotation) for field in fields}
