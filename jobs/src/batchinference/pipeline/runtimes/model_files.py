"""Locates model files, downloads them from object stores, and checks local folders of models.

A model is a local path, a path in an object store, or a model id of the Hugging Face Hub. The
library of the Hub is imported when it is needed, so that jobs with other models start quickly."""

import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from filelock import FileLock

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.storage.location import Location, is_inside
from batchinference.pipeline.storage.retry import with_retries
from batchinference.spec.addresses import expanded, is_local, local_path
from batchinference.spec.models import (
    Model,
    SentenceTransformersModel,
    TransformersModel,
    VllmModel,
)
from batchinference.spec.models.transformers_tasks import INPUTS
from batchinference.spec.storage import FROM_ENVIRONMENT, Storage

DOWNLOAD_THREADS = 8
"""Number of files of a model that are downloaded at the same time."""
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")
"""Name patterns of weight files. Tokenizers and processors do not need these files."""
HUB_SECONDS = 4.0
"""Timeout of a request that asks the Hub whether it has a file."""
BUSY = (408, 429, 500, 502, 503, 504)
"""HTTP status codes of the Hub after which a request is repeated."""
_PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)
_STREAMED = ("runai_streamer", "runai_streamer_sharded", "tensorizer")
"""Load formats with which vLLM reads the weights directly from the object store."""


def cache_directory() -> Path:
    """Return the folder for downloaded models: BATCHINFERENCE_CACHE or ~/.cache/batchinference."""
    return expanded(os.environ.get("BATCHINFERENCE_CACHE", "~/.cache/batchinference"))


def is_path(source: str) -> bool:
    """Return whether a source is a local path rather than a model id of the Hub."""
    marked = source.startswith(("/", "./", "../", "~", "file://"))
    return marked or (is_local(source) and Path(source).exists())


def resolve(source: str, revision: str | None = None, storage: Storage = FROM_ENVIRONMENT) -> str:
    """Return the local path of a model, or its id if it is a model of the Hub. Raises ModelLoad if
    a source of another kind does not exist or has a `revision`."""
    if is_local(source) and not is_path(source):
        return source
    if revision is not None:
        raise ModelLoad(f"revision: '{source}' is not a model of the Hub. Remove the field")
    return fetch_source(source, storage)


def fetch_source(
    source: str, storage: Storage = FROM_ENVIRONMENT, without: Sequence[str] = ()
) -> str:
    """Return the local path of a source on this machine or in an object store. Raises ModelLoad if
    nothing exists there. Files of an object store are downloaded once, and shared by all replicas
    with the same cache directory. Files that match a pattern in `without` are not downloaded."""
    if not is_local(source):
        return str(_cached_copy(Location(source, storage), without))
    path = expanded(source)
    if not path.exists():
        near = f"; did you mean '{similar}'?" if (similar := _similar(path)) else "."
        raise ModelLoad(
            f"model '{source}' not found: there is no {path.absolute()}{near} Correct the path, or "
            "put the model there"
        )
    return str(path)


def _similar(path: Path) -> Path | None:
    """Return the path with the most similar name in the same directory; None if none is similar."""
    with suppress(OSError):
        names = [other.name for other in path.parent.iterdir()]
        return next((path.with_name(name) for name in get_close_matches(path.name, names, 1)), None)
    return None


def check_source(
    source: str,
    hub_files: Sequence[str] = (),
    revision: str | None = None,
    storage: Storage = FROM_ENVIRONMENT,
) -> None:
    """Raise ModelLoad if a model does not exist. Downloads nothing. The source may be a model id of
    the Hub if `hub_files` is not empty. The model must then have at least one of these files."""
    if not is_local(source):
        if not Location(source, storage).exists():
            raise ModelLoad(f"model '{source}' not found: nothing there. Correct the address")
    elif is_path(source) or not hub_files:
        fetch_source(source)
    else:
        _check_hub(source, hub_files, revision)


def _check_hub(model_id: str, files: Sequence[str], revision: str | None) -> None:
    """Raise ModelLoad if neither the local cache nor the Hub has any of the files."""
    if any(_cached_file(model_id, file, revision) for file in files):
        return
    problem: Exception = FileNotFoundError()
    for file in files:
        cause = _problem_of_hub(model_id, file, revision)
        if cause is None:
            return
        problem = cause
        if not isinstance(problem, OSError | ValueError):
            break  # the Hub does not answer
    wanted = f"'{model_id}'" + (f" at revision '{revision}'" if revision else "")
    copy = _similar(Path(model_id)) or (model_id if _PLAIN_PATH.fullmatch(model_id) else "folder")
    raise ModelLoad(
        f"model {wanted} not found: no such folder here, and {_hub_reason(model_id, problem)}. To "
        f"use a local copy, write source: ./{copy}"
    ) from problem


def _cached_file(model_id: str, file: str, revision: str | None) -> str | None:
    """Return the path of a model's file in the local cache of the Hub; None if it is not cached."""
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # raised for an invalid model id
        path = try_to_load_from_cache(model_id, file, revision=revision)
        return path if isinstance(path, str) else None
    return None


def commit_of(model_id: str, files: Sequence[str], revision: str | None = None) -> str:
    """Return the commit of a model that was loaded from the Hub. It is the name of the folder in
    the local cache that has one of `files`. Raises ModelLoad if there is no such folder."""
    for file in files:
        if cached := _cached_file(model_id, file, revision):
            return Path(cached).parts[-1 - len(Path(file).parts)]
    raise ModelLoad(
        f"`cache` needs the commit of model '{model_id}', which is unknown. Use source: ./folder"
    )


def _problem_of_hub(model_id: str, file: str, revision: str | None) -> Exception | None:
    """Return why the Hub does not provide a file; None if the Hub provides the file. The error is
    an OSError or ValueError if the Hub has answered. Asks twice if the Hub is busy or silent."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    problem: Exception | None = None
    for _ in range(2):
        try:
            url = hf_hub_url(model_id, file, revision=revision)
            is_busy = isinstance(problem, OSError)
            get_hf_file_metadata(url, timeout=HUB_SECONDS, retry_on_errors=is_busy)
            return None
        except Exception as error:  # noqa: BLE001 - the type depends on the HTTP client
            problem = error
            status = getattr(getattr(error, "response", None), "status_code", None)
            if isinstance(error, OSError | ValueError) and status not in BUSY:
                break
    return problem


def _hub_reason(model_id: str, problem: Exception) -> str:
    """Return a part of a message: why the Hub does not provide a model, and sometimes advice."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and not isinstance(problem, ValueError):
        return (
            f"{constants.HF_HUB_CACHE} does not hold it. The Hub is not asked, because "
            f"HF_HUB_OFFLINE is set. Put the model there with 'hf download {model_id}'"
        )
    first_line = str(problem).strip().partition("\n")[0].rstrip(".")
    if isinstance(problem, OSError | ValueError):
        return f"the Hub says: {type(problem).__name__}: {first_line}"
    return (
        f"the Hub ({constants.ENDPOINT}) does not answer: {type(problem).__name__}: {first_line}. "
        "Without a network, set HF_HUB_OFFLINE=1 to use the models that were downloaded before"
    )


def _cached_copy(source: Location, without: Sequence[str] = ()) -> Path:
    """Return the path of the copy of a file or folder in the cache. Downloads it if necessary."""
    info = source.info()
    files = [info] if info.is_file else source.files(recursive=True)
    files = [file for file in files if not any(fnmatch(file.path, name) for name in without)]
    if not files:
        raise ModelLoad(f"model '{source.uri}' not found: nothing there. Correct the address")
    listing = sorted((file.path, file.size, str(file.mtime)) for file in files)
    key = (source.scheme, source.storage.endpoint, listing)
    name = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
    target = cache_directory() / "models" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _download(source, [path for path, _, _ in listing], target)
    return target / Path(source.path).name if info.is_file else target


def _download(source: Location, paths: list[str], target: Path) -> None:
    """Download to a temporary folder first, so that a partial download is never used as a model."""
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    files = [partial / _path_in_model(source, path) for path in paths]
    with ThreadPoolExecutor(DOWNLOAD_THREADS) as pool:
        # the first error cancels the files that are not downloaded yet
        for _ in pool.map(functools.partial(_copy, source), paths, files):
            pass
    partial.rename(target)


def _path_in_model(source: Location, path: str) -> str:
    """Return the path of a file in its model's folder. Raises ModelLoad for a path outside."""
    relative = path[len(source.path) :].lstrip("/") or Path(path).name
    if not is_inside(relative):
        raise ModelLoad(
            f"model '{source.uri}': the object key '{path}' leads out of the model's folder. "
            "Rename the object"
        )
    return relative


def _copy(source: Location, path: str, file: Path) -> None:
    def copy_once() -> None:
        opened = source.filesystem.open_input_stream(path, compression=None)
        with opened as stream, file.open("wb") as out:
            shutil.copyfileobj(stream, out, 8 << 20)

    file.parent.mkdir(parents=True, exist_ok=True)
    with_retries(copy_once)


def local_tokenizer(source: str, revision: str | None = None) -> Any:
    """Load the tokenizer of a model without a download. Return None if its files are not on this
    machine, or if the tokenizer needs code of the model."""
    # `AutoTokenizer` would first import torchvision, which takes longer than a second
    tokenizer = local_part(source, revision, "PreTrainedTokenizerFast")
    if tokenizer is None or "auto_map" in tokenizer.init_kwargs:
        return local_part(source, revision, "AutoTokenizer")
    return tokenizer


def library_tokenizer(folder: str, revision: str | None = None) -> Any:
    """Return the tokenizer in the folder of a model. If `folder` is a model id of the Hub, the
    transformers library downloads the tokenizer."""
    from transformers import AutoTokenizer

    where = {} if revision is None else {"revision": revision}
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **where)


def local_part(source: str, revision: str | None, kind: str) -> Any:
    """Load a part of a model by its class in transformers, such as AutoProcessor. Return None if it
    cannot be loaded from files on this machine."""
    if not is_local(source):
        return None
    import transformers

    where = {} if revision is None else {"revision": revision}
    path = fetch_source(source) if is_path(source) and Path(local_path(source)).exists() else source
    try:
        return getattr(transformers, kind).from_pretrained(
            path, local_files_only=True, trust_remote_code=False, **where
        )
    except Exception:  # noqa: BLE001 - the replicas report why it cannot be loaded
        return None


def files_without_weights(model: VllmModel | TransformersModel | SentenceTransformersModel) -> str:
    """Return a local folder with the files of a model, without a download of its weights. A model
    id of the Hub without a revision is returned unchanged."""
    if not is_local(model.source):
        return fetch_source(model.source, model.storage, without=WEIGHTS)
    if model.revision is None or is_path(model.source):
        return resolve(model.source, model.revision)
    from huggingface_hub import snapshot_download

    return str(  # callers load the files without naming the revision
        snapshot_download(model.source, revision=model.revision, ignore_patterns=list(WEIGHTS))
    )


def engine_source(model: VllmModel) -> str:
    """Return the source from which vLLM's engine loads a model: a local folder, or a model id of
    the Hub. If the load format streams the weights, return the source of the model unchanged."""
    if model.engine.get("load_format") in _STREAMED:
        return model.source
    return resolve(model.source, model.revision, model.storage)


_CONFIGS = ("config.json", "adapter_config.json", "modules.json")
"""A model's folder has at least one of these files."""
_TOKENIZERS = ("*token*", "*vocab*", "merges.txt", "*.model")
"""A folder with a tokenizer has a file that matches one of these patterns."""
_LFS = b"version https://git-lfs"
_TASKS_OF_HEADS = {
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


def onnx_file(path: str) -> str:
    """Return the path of the model file; for a folder, its only .onnx file. Raises ModelLoad."""
    if not Path(path).is_dir():
        return path
    files = sorted(Path(path).glob("*.onnx"))
    if len(files) != 1:
        raise ModelLoad(f"source: '{path}' has {len(files)} .onnx files. Name the file")
    return str(files[0])


def check_folder(model: Model) -> None:
    """Raise ModelLoad if a local source has no model of transformers or sentence-transformers, or
    if the model is not for the task. A local folder for ONNX must have exactly one .onnx file.
    Other models and sources are not checked."""
    if model.runtime == "onnx" and is_path(model.source):
        onnx_file(str(expanded(model.source)))
    if not isinstance(model, TransformersModel | SentenceTransformersModel):
        return
    if not is_path(model.source):
        return
    folder = expanded(model.source)
    problem = _folder_problem(folder)
    if not problem and isinstance(model, TransformersModel):
        problem = _task_problem(folder, model.task)
    if problem:
        raise ModelLoad(f"model '{model.source}' {problem}")


def _folder_problem(folder: Path) -> str:
    """Return why a path is not the folder of a model; an empty text if no problem is known."""
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
                return f"has only a pointer of Git LFS as {file.name}. Run 'git lfs pull' there"
    return ""


def _task_problem(folder: Path, task: str) -> str:
    """Return why a model is not for a task; an empty text if no problem is known."""
    try:
        config = _json(folder / "config.json")
    except ValueError as error:
        return f"has an invalid config.json: {error}. Copy the file again"
    (architecture, *_) = config.get("architectures") or [""]
    for end, tasks in _TASKS_OF_HEADS.items():
        needs_head = not task.endswith("feature-extraction")
        if architecture.endswith(end) and needs_head and task not in tasks:
            known = _as_fields([each for each in tasks if _is_for(each, folder)] or tasks, task)
            other = f"Choose a model for this task, or set task to {known}"
            return f"is a {architecture}, and not for the task {task}. {other}"
    takes_text = task == "text-generation" or INPUTS.get(task, ())[:1] == ("text",)
    if takes_text and not any(next(folder.glob(name), None) for name in _TOKENIZERS):
        is_image = (folder / "preprocessor_config.json").exists()
        fix = "Set task to one for images" if is_image else "Copy its tokenizer to this folder"
        if is_image and task == "feature-extraction":
            fix = "Set task to image-feature-extraction"
        return f"has no tokenizer, which the task {task} needs. {fix}"
    return _whisper_problem(folder, config)


def _is_for(task: str, folder: Path) -> bool:
    """Return whether a task and the model in a folder are both for audio, or both for other inputs.
    A model for audio has a preprocessor."""
    of_sounds = INPUTS.get(task, ("",))[0] == "audio"
    return of_sounds == (folder / "preprocessor_config.json").exists()


def _as_fields(tasks: Sequence[str], instead_of: str) -> str:
    """Return tasks as text, with the field `inputs` if the task `instead_of` has another input."""
    inputs = [INPUTS.get(task, ("text",))[0] for task in (tasks[0], instead_of)]
    fields = f" with inputs: {{{inputs[0]}: COLUMN}}" if inputs[0] != inputs[1] else ""
    return f"{' or '.join(tasks)}{fields}"


def _whisper_problem(folder: Path, config: dict[str, Any]) -> str:
    """Return the problem of a Whisper model with another model's tokenizer; empty for others."""
    file = folder / "tokenizer_config.json"
    kind = str(_json(file).get("tokenizer_class", "Whisper"))
    if config.get("model_type") != "whisper" or kind.startswith("Whisper"):
        return ""
    return f"has a {kind} as its tokenizer. Copy the files of a WhisperTokenizer to this folder"


def _json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return content if isinstance(content, dict) else {}
