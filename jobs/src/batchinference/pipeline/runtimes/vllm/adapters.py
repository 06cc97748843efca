"""Fetches the LoRA adapters that rows name, from local folders, object stores or the Hub."""

import threading
from pathlib import Path
from typing import Any

from batchinference.pipeline.errors import JobFailure, describe
from batchinference.pipeline.runtimes.model_files import fetch_source
from batchinference.pipeline.storage.location import Location, is_inside
from batchinference.spec.models import VllmModel

ADAPTER_FILE = "adapter_config.json"


class NoAdapter(Exception):
    """A row names no adapter that it may use."""


class Adapters:
    """vLLM's requests for the LoRA adapters that rows name. Each adapter is downloaded once."""

    def __init__(self, model: VllmModel) -> None:
        self._model = model
        self._requests: dict[str, Any] = {}
        """The request, or NoAdapter, for each name that a row has given."""
        self._lock = threading.Lock()

    def request_for(self, name: Any) -> Any:
        """Return the request for an adapter. Raises NoAdapter, or JobFailure if fetching fails."""
        if not isinstance(name, str):
            raise NoAdapter(f"expected the name of an adapter, got {type(name).__name__}")
        with self._lock:
            if name not in self._requests:
                self._requests[name] = self._request(name)
            request = self._requests[name]
        if isinstance(request, NoAdapter):
            raise request
        return request

    def _request(self, name: str) -> Any:
        from vllm.lora.request import LoRARequest

        try:
            return LoRARequest(name, len(self._requests) + 1, self._fetch(name))
        except NoAdapter as error:
            return error
        except Exception as error:
            raise JobFailure(
                f"the adapter '{name}' cannot be fetched: {describe(error)}"
            ) from error

    def _fetch(self, name: str) -> str:
        """Return the folder of an adapter. Raises NoAdapter if it is missing or may not be used."""
        folder, allowed = self._model.lora_path, self._model.lora_adapters
        if name not in allowed and (allowed or folder is None):
            raise NoAdapter(f"the adapter '{name}' is not in 'loraAdapters'")
        if folder is None:
            return _fetch_from_hub(name)
        if not is_inside(name):
            raise NoAdapter(f"'{name}' is not the name of an adapter below 'loraPath'")
        uri = f"{folder.rstrip('/')}/{name}"
        if not (Location(uri, self._model.storage) / ADAPTER_FILE).exists():
            raise NoAdapter(f"there is no {uri}/{ADAPTER_FILE}")
        return fetch_source(uri, self._model.storage)


def _fetch_from_hub(name: str) -> str:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        folder = Path(snapshot_download(name))
    except (HFValidationError, RepositoryNotFoundError) as error:
        raise NoAdapter(f"the Hub has no adapter '{name}'") from error
    if not (folder / ADAPTER_FILE).exists():
        raise NoAdapter(f"'{name}' of the Hub is not an adapter: it has no {ADAPTER_FILE}")
    return str(folder)
