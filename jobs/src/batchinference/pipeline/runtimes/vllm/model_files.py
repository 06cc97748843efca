"""The files of a model and of its adapters, on the machine that needs them."""

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
"""Names of files that hold weights. What prepares prompts does without them."""
ADAPTER_FILE = "adapter_config.json"
_STREAMED = ("runai_streamer", "runai_streamer_sharded", "tensorizer")
"""Load formats with which vLLM reads weights out of the object store itself."""


def files_beside(model: VllmModel) -> str:
    """A folder with all but the weights, or the id of a model of the Hub as it is."""
    if not is_local(model.source):
        return resolve_place(model.source, model.storage, without=WEIGHTS)
    if model.revision is None or is_path(model.source):
        return resolve(model.source, model.revision)
    # of Ray's stages beside the engine none takes a revision
    return str(
        snapshot_download(model.source, revision=model.revision, ignore_patterns=list(WEIGHTS))
    )


def files_of(model: VllmModel) -> str:
    """What the engine loads: a folder, or the id of a model of the Hub as it is."""
    if model.engine.get("load_format") in _STREAMED:
        return model.source
    return resolve(model.source, model.revision, model.storage)


class NoAdapter(Exception):
    """There is no adapter of the name that a row gives."""


class Adapters:
    """The LoRA adapters that rows name. Each is fetched once."""

    def __init__(self, model: VllmModel) -> None:
        self._model = model
        self._found: dict[str, str | NoAdapter] = {}

    def folder(self, name: Any) -> str:
        """Return where an adapter is on this machine. Raises NoAdapter, and whatever keeps it from
        being fetched."""
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
