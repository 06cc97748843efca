"""Downloads the files of a model and of its adapters to the machine that needs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

from batchinference.pipeline.runtimes.model_files import is_path, resolve, resolve_place
from batchinference.pipeline.storage.location import Location, is_inside
from batchinference.spec.models import VllmModel
from batchinference.spec.uris import is_local

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.onnx")
"""Name patterns of weight files. The stages that prepare prompts do not need these files."""
ADAPTER_FILE = "adapter_config.json"
_STREAMED = ("runai_streamer", "runai_streamer_sharded", "tensorizer")
"""Load formats with which vLLM reads the weights directly from the object store."""


def files_beside(model: VllmModel) -> str:
    """Return a local folder with all files but the weights, or a model id of the Hub unchanged."""
    if not is_local(model.source):
        return resolve_place(model.source, model.storage, without=WEIGHTS)
    if model.revision is None or is_path(model.source):
        return resolve(model.source, model.revision)
    # except for the engine, none of Ray's stages accepts a revision
    return str(
        snapshot_download(model.source, revision=model.revision, ignore_patterns=list(WEIGHTS))
    )


def files_of(model: VllmModel) -> str:
    """Return the source that the engine loads: a local folder, or a model id of the Hub unchanged.

    For load formats that stream the weights, return the source unchanged.
    """
    if model.engine.get("load_format") in _STREAMED:
        return model.source
    return resolve(model.source, model.revision, model.storage)


class NoAdapter(Exception):
    """The adapter that a row names does not exist."""


class Adapters:
    """The LoRA adapters that rows name. Each adapter is downloaded once."""

    def __init__(self, model: VllmModel) -> None:
        self._model = model
        self._found: dict[str, str | NoAdapter] = {}

    def folder(self, name: Any) -> str:
        """Return the local folder of an adapter. Raises NoAdapter if it does not exist, and the
        underlying error if the download fails."""
        if not isinstance(name, str):
            raise NoAdapter(f"expected the name of an adapter, got {type(name).__name__}")
        if name not in self._found:
            try:
                self._found[name] = self._fetch(name)
            except NoAdapter as error:
                self._found[name] = error
        found = self._found[name]
        if isinstance(found, NoAdapter):
            raise found
        return found

    def _fetch(self, name: str) -> str:
        below, listed = self._model.lora_path, self._model.lora_adapters
        if name not in listed and (listed or below is None):
            raise NoAdapter(f"the adapter '{name}' is not in 'loraAdapters'")
        if below is None:
            return _of_hub(name)
        if not is_inside(name):
            raise NoAdapter(f"'{name}' is no name of an adapter below 'loraPath'")
        place = f"{below.rstrip('/')}/{name}"
        if not (Location(place, self._model.storage) / ADAPTER_FILE).exists():
            raise NoAdapter(f"there is no {place}/{ADAPTER_FILE}")
        return resolve_place(place, self._model.storage)


def _of_hub(name: str) -> str:
    try:
        folder = Path(snapshot_download(name))
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise NoAdapter(f"the Hub has no adapter '{name}'") from error
    if not (folder / ADAPTER_FILE).exists():
        raise NoAdapter(f"'{name}' of the Hub is no adapter: it has no {ADAPTER_FILE}")
    return str(folder)
