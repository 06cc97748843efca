"""Where a model's files are: a path, an s3:// prefix, or an id of the Hugging Face Hub."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from filelock import FileLock

from batchinference.pipeline.failures import ModelLoad
from batchinference.pipeline.storage import Address
from batchinference.spec.uris import is_local, local_path


def cache_directory() -> Path:
    """Where fetched models are kept: BATCHINFERENCE_CACHE, or below ~/.cache."""
    chosen = os.environ.get("BATCHINFERENCE_CACHE", "~/.cache/batchinference")
    return Path(chosen).expanduser()


def is_path(source: str) -> bool:
    """Whether a source is meant as a local path and not as an id of the Hub."""
    marked = source.startswith(("/", "./", "../", "~", "file://"))
    return marked or (is_local(source) and Path(source).exists())


def resolve(source: str) -> str:
    """A local path for a path or s3:// source; an id of the Hub as it is.

    What lies on S3 is fetched once a machine and shared by its replicas.
    """
    if not is_local(source):
        return str(_fetch(Address(source)))
    if not is_path(source):
        return source
    path = Path(local_path(source)).expanduser()
    if not path.exists():
        raise ModelLoad(f"model '{source}' not found: there is no {path.absolute()}")
    return str(path)


def check(source: str) -> None:
    """Raise ModelLoad when a model is plainly not there, without fetching or loading it."""
    if not is_local(source):
        if not Address(source).exists():
            raise ModelLoad(f"model '{source}' not found: nothing there")
    elif is_path(source):
        resolve(source)
    else:
        _check_hub(source)


def _check_hub(model_id: str) -> None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HFValidationError

    try:
        hf_hub_download(model_id, "config.json")
    except (OSError, ValueError, HFValidationError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ModelLoad(
            f"model '{model_id}' not found: no such folder here, and the Hub says: "
            f"{type(error).__name__}: {first_line}"
        ) from error


def _fetch(source: Address) -> Path:
    files = [source.info()] if source.info().is_file else source.files(recursive=True)
    if not files:
        raise ModelLoad(f"model '{source.uri}' not found: nothing there")
    listing = [(info.path, info.size, str(info.mtime)) for info in sorted(files, key=_path)]
    name = hashlib.sha256(repr(listing).encode()).hexdigest()[:16]
    target = cache_directory() / "models" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if not target.exists():
            _download(source, [path for path, _, _ in listing], target)
    only = target / Path(source.path).name
    return only if source.info().is_file else target


def _path(info: object) -> str:
    return str(getattr(info, "path", ""))


def _download(source: Address, paths: list[str], target: Path) -> None:
    """Into a folder of its own first, so that a broken-off download is never taken for a model."""
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for path in paths:
        relative = path[len(source.path) :].lstrip("/") or Path(path).name
        file = partial / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = source.filesystem.open_input_stream(path, compression=None)
        with opened as stream, file.open("wb") as out:
            shutil.copyfileobj(stream, out, 8 << 20)
    partial.rename(target)
