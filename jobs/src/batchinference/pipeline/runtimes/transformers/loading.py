"""Loads models of the transformers library with their dtype, attention and devices. Checks the
names of their options against the signatures of the library.

The library silently ignores most unknown options. A few parts, such as custom tokenizers, accept
names that are in no signature. The options of these parts are not checked."""

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, is_typeddict

import torch
import transformers
from transformers import BatchFeature, GenerationConfig, Pipeline, PreTrainedTokenizerFast
from transformers.pipelines import check_task
from transformers.pipelines.base import load_model
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import find_adapter_config_file

from batchinference.pipeline.errors import RUNTIMES_EXTRA, ModelLoad, require_package
from batchinference.pipeline.runtimes.device import Device, torch_device
from batchinference.pipeline.runtimes.flat_tokens import is_plain
from batchinference.pipeline.runtimes.model_files import resolve
from batchinference.spec.models import TransformersModel
from batchinference.spec.models.transformers_tasks import EMBEDDING
from batchinference.spec.problems import did_you_mean

NO_CODE = {"trust_remote_code": False}
"""Refuses models with their own code. By default, transformers asks the user on a terminal."""
_TRAINING = re.compile(r"(^|\.)(masked_spec_embed|mask_token)$")
"""Weights that replace masked parts of an input in training. Checkpoints often omit them."""
_POOLER = re.compile(r"(^|\.)pooler\.")
_STATISTICS = re.compile(r"\.running_(mean|var)$")
_WITHOUT_POOLER = ("fill-mask", "token-classification")
"""Tasks with a result for each token, which do not need the pooler of a model."""


class ModelLoader:
    """Loads a model, and its tokenizer and other processors, from its source."""

    def __init__(self, model: TransformersModel, device: Device) -> None:
        self._spec = model
        self.path = resolve(model.source, model.revision, model.storage)
        self.revision = {"revision": model.revision} if model.revision else {}
        self._check_adapter()
        self.device = torch_device(device)
        self.weights = _weight_options(model)
        self.device_map = device_map_of(model, device)

    def _check_adapter(self) -> None:
        """Raise ModelLoad for a peft adapter that the library cannot combine with a base model."""
        revision = self._spec.revision
        adapter = find_adapter_config_file(self.path, revision=revision)
        if adapter is None:
            return
        options = {"_raise_exceptions_for_missing_entries": False}
        config = cached_file(self.path, "config.json", revision=revision, **options)
        if config and is_peft_available():
            return
        base = json.loads(Path(adapter).read_text()).get("base_model_name_or_path")
        raise ModelLoad(
            f"model '{self._spec.source}' holds an adapter of peft for the model '{base}'. Merge "
            "them with merge_and_unload(), and name the folder of the result"
        )

    def load_model(self, kind: Any) -> Any:
        """Return the model, loaded with the Auto class `kind` on the device, in evaluation mode.
        Raises ModelLoad if the model lacks weights for the task, or is not for the task."""
        try:
            pair = kind.from_pretrained(self.path, **self._options())
        except ValueError as error:
            if str(error).startswith("Unrecognized configuration class"):
                raise ModelLoad(
                    f"model '{self._spec.source}' is not for the task '{self._spec.task}'. Name "
                    "another model, or a task of this one"
                ) from None
            raise
        loaded = self._complete(pair)
        return (loaded if self.device_map else loaded.to(self.device)).eval()

    def load_pipeline_model(self) -> Any:
        """Return the model for the library's pipeline, which moves it if there is no device map."""
        config = self.load_processor(transformers.AutoConfig, _from_pipeline=self._spec.task)
        _, task, _ = check_task(self._spec.task)
        where = {"model_classes": task["pt"], "config": config, "task": self._spec.task}
        return self._complete(load_model(self.path, **where, **self._options()))

    def _options(self) -> dict[str, Any]:
        where = {"device_map": self.device_map} if self.device_map else {}
        return {**self.revision, **NO_CODE, **self.weights, **where, "output_loading_info": True}

    def _complete(self, pair: tuple[Any, dict[str, Any]]) -> Any:
        """Return a loaded model. Raises ModelLoad if weights that the task needs are missing."""
        loaded, report = pair
        missing = missing_weights(loaded, report["missing_keys"], self._spec.task)
        if missing:
            some = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
            raise ModelLoad(
                f"model '{self._spec.source}' has no weights for what '{self._spec.task}' needs, "
                f"and random weights would be used: {some}. Name a model that was trained for this "
                "task, or the task that this one was trained for"
            )
        return loaded

    def load_processor(self, kind: Any, **options: Any) -> Any:
        """Return the tokenizer, another processor or the configuration by its Auto class `kind`."""
        return kind.from_pretrained(self.path, **self.revision, **NO_CODE, **options)


def missing_weights(loaded: Any, missing: Iterable[str], task: str) -> list[str]:
    """Return the names in `missing` of weights that the task needs, sorted."""
    unused = [_TRAINING]
    if task in _WITHOUT_POOLER or (task in EMBEDDING and not hasattr(loaded, "get_text_features")):
        unused.append(_POOLER)
    # only buffers with learned statistics are needed: the library recomputes other buffers
    learned = {name for name, _ in loaded.named_parameters()}
    learned |= {name for name, _ in loaded.named_buffers() if _STATISTICS.search(name)}
    needed = learned.intersection(missing)
    return sorted(name for name in needed if not any(pattern.search(name) for pattern in unused))


def device_map_of(model: TransformersModel, device: Device) -> Any:
    """Return the device map for the package accelerate; None if the model goes to one device.
    Raises ModelLoad if accelerate is needed and not installed."""
    wanted = model.device_map or ("auto" if device.count > 1 else None)
    if wanted:
        what = "a model on several devices, or with 'deviceMap',"
        require_package(what, "accelerate", RUNTIMES_EXTRA, ModelLoad)
    return wanted


def to_model(tensors: Any, model: Any) -> Any:
    """Return tensors on the model's device; floats of a BatchFeature also in the model's dtype."""
    if isinstance(tensors, BatchFeature):
        return tensors.to(model.device, dtype=model.dtype)
    return tensors.to(model.device)


def _weight_options(model: TransformersModel) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if model.dtype:
        options["dtype"] = "auto" if model.dtype == "auto" else getattr(torch, model.dtype)
    if model.attention:
        options["attn_implementation"] = model.attention
    return options


_NAMELESS = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def pop_loading_options(options: dict[str, Any]) -> dict[str, Any]:
    """Remove and return the options for loading a processor. The options of its calls remain."""
    return {name: options.pop(name) for name in ("backend", "use_fast") if name in options}


def check_options(options: Mapping[str, Any], known: set[str] | None) -> None:
    """Raise ModelLoad for an option that is not in `known`. If `known` is None, check nothing."""
    if known is None:
        return
    for name in options:
        if name in known:
            continue
        hint = did_you_mean(name, known)
        raise ModelLoad(f"options: transformers has no option '{name}' here{hint}")


def tokenizer_options(tokenizer: Any) -> set[str] | None:
    """Return the options of a tokenizer's calls; None if they are unknown (see `is_plain`)."""
    return _names(PreTrainedTokenizerFast.__call__) if is_plain(tokenizer) else None


def image_processor_options(processor: Any) -> set[str]:
    """Return the options of an image processor's calls."""
    kind = type(processor)
    return set(kind.valid_kwargs.__annotations__) | _names(kind.__call__, kind.preprocess)


def feature_extractor_options(extractor: Any) -> set[str]:
    """Return the options of a feature extractor's calls."""
    kind = type(extractor)
    return _names(kind.__call__, kind.pad) if hasattr(kind, "pad") else _names(kind.__call__)


def processor_options(processor: Any) -> set[str] | None:
    """Return the options of a processor's calls, also those for its tokenizer and its other parts.
    Return None if its signature does not list the options."""
    call = inspect.signature(type(processor).__call__).parameters
    kind = next(iter(get_args(call["kwargs"].annotation)), None) if "kwargs" in call else None
    if not is_typeddict(kind):
        return None
    declared = kind.__annotations__
    kinds = [getattr(part, "valid_kwargs", None) for part in vars(processor).values()]
    parts = (kind.__annotations__ for kind in [*declared.values(), *kinds] if is_typeddict(kind))
    return _names(type(processor).__call__).union(declared, *parts)


def pipeline_options(pipeline: Any) -> set[str]:
    """Return the options of a pipeline's calls. If the pipeline passes options on to a model that
    generates, the options of `generate` are included."""
    kind = type(pipeline)
    calls = [Pipeline.__call__, kind._sanitize_parameters]
    parameters = inspect.signature(kind._sanitize_parameters).parameters.values()
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return _names(*calls)
    names = _names(*calls, kind.preprocess, kind._forward, kind.postprocess)
    if not pipeline.model.can_generate():
        return names
    return names | {"generate_kwargs"} | _generation_options(pipeline.model)


def _generation_options(model: Any) -> set[str]:
    kind = type(model)
    calls = [kind.generate, kind.forward, kind.prepare_inputs_for_generation]
    if model.config.is_encoder_decoder:
        calls.append(type(model.get_encoder()).forward)
    return _names(*calls).union(vars(GenerationConfig()), vars(model.generation_config))


def _names(*calls: Any) -> set[str]:
    """Return the names of all parameters of `calls` that can be passed by name."""
    values = (inspect.signature(call).parameters.values() for call in calls)
    return {one.name for parameters in values for one in parameters if one.kind not in _NAMELESS}
