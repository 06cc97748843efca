"""Checks that a local folder holds a model for the task of a step. Does not load the weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes.model_files import WEIGHTS, is_path
from batchinference.spec.addresses import local_path
from batchinference.spec.models import Model, SentenceTransformersModel, TransformersModel
from batchinference.spec.models.transformers_tasks import INPUTS

_CONFIGS = ("config.json", "adapter_config.json", "modules.json")
"""A model's folder has at least one of these files."""
_TOKENIZERS = ("*token*", "*vocab*", "merges.txt", "*.model")
"""A folder with a tokenizer has a file that matches one of these patterns."""
_LFS = b"version https://git-lfs"
_HEADS = {
    "ForSequenceClassification": (
        *("text-classification", "zero-shot-classification", "audio-classification"),
    ),
    "ForTokenClassification": ("token-classification",),
    "ForCausalLM": ("text-generation", "image-text-to-text"),
    "LMHeadModel": ("text-generation",),
    "ForMaskedLM": ("fill-mask", "text-generation"),
    "ForImageClassification": ("image-classification",),
    "ForObjectDetection": ("object-detection",),
    "ForCTC": ("automatic-speech-recognition",),
    "ForSpeechSeq2Seq": ("automatic-speech-recognition",),
}
"""The tasks for which a model has weights, by the end of the name of its architecture."""


def check_folder(model: Model) -> None:
    """Raise ModelLoad if the source of a model is a local folder without a model, or with one that
    is not for the task. Other sources are not checked."""
    if not isinstance(model, TransformersModel | SentenceTransformersModel):
        return
    if not is_path(model.source):
        return
    folder = Path(local_path(model.source)).expanduser()
    problem = _folder_problem(folder)
    if not problem and isinstance(model, TransformersModel):
        problem = _task_problem(folder, model.task)
    if problem:
        raise ModelLoad(f"model '{model.source}' {problem}")


def _folder_problem(folder: Path) -> str:
    """Return why a path is not the folder of a model; an empty text if it may be one."""
    if folder.is_file():
        is_part = (folder.parent / "config.json").exists()
        fix = f"Write source: {folder.parent}" if is_part else "Name the folder of a model"
        return f"is a file. {fix}"
    if not any((folder / name).exists() for name in _CONFIGS):
        inner = sorted(folder.glob("*/config.json"))
        fix = f"did you mean '{inner[0].parent}'?" if inner else "name the folder of a model"
        return f"has no config.json; {fix}"
    weights = [file for pattern in WEIGHTS for file in folder.glob(f"**/{pattern}")]
    if not weights:
        return "has no weights, such as model.safetensors. Copy them to this folder"
    for file in weights:
        with file.open("rb") as opened:
            if opened.read(len(_LFS)) == _LFS:
                return f"has only a pointer of Git LFS as {file.name}. Run 'git lfs pull' in it"
    return ""


def _task_problem(folder: Path, task: str) -> str:
    """Return why a model is not for a task; an empty text if it may be."""
    try:
        config = _json(folder / "config.json")
    except ValueError as error:
        return f"has an invalid config.json: {error}. Copy the file again"
    (architecture, *_) = config.get("architectures") or [""]
    for end, tasks in _HEADS.items():
        needs_head = not task.endswith("feature-extraction")
        if architecture.endswith(end) and needs_head and task not in tasks:
            known = _described([each for each in tasks if _is_for(each, folder)] or tasks, task)
            other = f"Choose a model for this task, or set task to {known}"
            return f"is a {architecture}, and not for the task {task}. {other}"
    takes_text = task == "text-generation" or INPUTS.get(task, ())[:1] == ("text",)
    if takes_text and not any(next(folder.glob(name), None) for name in _TOKENIZERS):
        is_image = (folder / "preprocessor_config.json").exists()
        fix = "Set task to one of images" if is_image else "Copy its tokenizer to this folder"
        if is_image and task == "feature-extraction":
            fix = "Set task to image-feature-extraction"
        return f"has no tokenizer, which the task {task} needs. {fix}"
    return _whisper_problem(folder, config)


def _is_for(task: str, folder: Path) -> bool:
    """Return whether task and model agree about audio. A model for audio has a preprocessor."""
    of_sounds = INPUTS.get(task, ("",))[0] == "audio"
    return of_sounds == (folder / "preprocessor_config.json").exists()


def _described(tasks: Sequence[str], instead_of: str) -> str:
    """Return tasks as text, with the field `inputs` if the task `instead_of` has another input."""
    inputs = [INPUTS.get(task, ("text",))[0] for task in (tasks[0], instead_of)]
    fields = f" with inputs: {{{inputs[0]}: COLUMN}}" if inputs[0] != inputs[1] else ""
    return f"{' or '.join(tasks)}{fields}"


def _whisper_problem(folder: Path, config: dict[str, Any]) -> str:
    """Return a problem if a Whisper model has the tokenizer of another model, else no text."""
    file = folder / "tokenizer_config.json"
    kind = str(_json(file).get("tokenizer_class", "Whisper"))
    if config.get("model_type") != "whisper" or kind.startswith("Whisper"):
        return ""
    return f"has a {kind} as its tokenizer. Copy the files of a WhisperTokenizer to this folder"


def _json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return content if isinstance(content, dict) else {}
