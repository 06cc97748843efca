"""Model sources: local paths, fetched folders, object stores, and ids on the Hugging Face Hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
from filelock import FileLock

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.runtimes import model_files
from batchinference.pipeline.runtimes.device import Device
from batchinference.pipeline.runtimes.kinds import check_runtime, load_runtime
from batchinference.pipeline.runtimes.model_files import (
    cache_directory,
    check_source,
    engine_source,
    fetch_source,
    files_without_weights,
    is_path,
    resolve,
)
from batchinference.pipeline.steps import check_step
from batchinference.pipeline.storage.location import Location
from batchinference.spec.models import VllmModel
from batchinference.spec.profiles import OTHER_IMAGES
from batchinference.spec.steps import Step
from plugins.messages import Messages
from support.documents.vllm_models import vllm
from support.servers.loopback import handled_by
from support.servers.s3 import S3Server

HUB = ("modules.json", "config.json")
"""A model on the Hub has one of these files."""


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate an unreachable Hub with an empty cache."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BATCHINFERENCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_local_path_is_used_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org/model").mkdir(parents=True)
    for path in ("{}", "file://{}", "{}/", "{}/../model"):
        source = path.format(tmp_path / "org/model")
        assert Path(resolve(source)).samefile(tmp_path / "org/model")
        check_source(source, HUB)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/org/model") == str(tmp_path / "org/model")


def test_relative_path_exists_or_begins_with_a_dot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model") == "org/model"
    assert [is_path(path) for path in ("org/model", "./missing", "org/missing")] == [
        *(True, True, False)
    ]
    model_id = "sentence-transformers/all-MiniLM-L6-v2"
    assert resolve(model_id) == model_id


def test_missing_path_error_has_the_full_path(messages: Messages) -> None:
    for source in ("/nowhere/model", "./nowhere", "~/nowhere", "file:///nowhere"):
        for call in (resolve, partial(check_source, hub_files=HUB)):
            with messages.raises(ModelLoad):
                call(source)


def test_similar_folder_is_suggested(
    offline: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models/sentiment").mkdir(parents=True)
    with pytest.raises(ModelLoad, match=r"write source: \./models/sentiment$"):
        check_source("models/sentimnt", HUB)
    with pytest.raises(ModelLoad, match=r"did you mean 'models/sentiment'\?"):
        check_source("./models/sentimnt", HUB)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Serve a Hub that has only `org/model` at `main`. The cache is empty."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with handled_by(Hub) as port:
        address = f"http://127.0.0.1:{port}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            address + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield


class Hub(BaseHTTPRequestHandler):
    def status(self) -> int:
        """Return the status of all answers about models that exist."""
        return 200

    def do_HEAD(self) -> None:
        known = self.path.startswith("/org/model/")
        result = known and self.path.startswith("/org/model/resolve/main/config.json")
        status = self.status()
        self.send_response(status if status != 200 or result else 404)
        if not result:
            self.send_header("X-Error-Code", "RevisionNotFound" if known else "RepoNotFound")
        self.send_header("ETag", '"etag"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", "2" if result else "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        if self.path.startswith("/org/model/resolve/main/config.json"):
            self.wfile.write(b"{}")


def test_id_unknown_to_the_hub_is_rejected(hub: None, messages: Messages) -> None:
    for name in ("org/missing", "missing", "no/such/model", "bad name!"):
        with pytest.raises(ModelLoad) as failure:
            check_source(name, HUB)
        messages.check(failure.value.message)
        assert "\n" not in failure.value.message


def test_revision_unknown_to_the_hub_is_rejected(hub: None) -> None:
    check_source("org/model", ["config.json"])
    check_source("org/model", ["config.json"], "main")
    with pytest.raises(ModelLoad, match=r"'org/model' at revision 'v2' not found: .*Revision"):
        check_source("org/model", ["config.json"], "v2")


def test_offline_error_names_the_download_command(
    offline: None, tmp_path: Path, messages: Messages
) -> None:
    with pytest.raises(ModelLoad) as failure:
        check_source("org/missing", HUB, "v2")
    messages.check(failure.value.message)


class NoAnswer(Exception):
    """An error of the HTTP client."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Make the Hub unreachable, and return the files that were asked for."""
    files: list[str] = []

    def no_answer(url: str, **_: object) -> None:
        files.append(url.rpartition("/")[2])
        raise NoAnswer("no route to host")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", no_answer)
    return files


def test_unreachable_hub_is_asked_twice_for_one_file(asked: list[str], messages: Messages) -> None:
    with pytest.raises(ModelLoad) as failure:
        check_source("org/missing", HUB)
    assert asked == ["modules.json"] * 2
    messages.check(failure.value.message)


def test_busy_hub_is_asked_again(hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [503, 200]
    monkeypatch.setattr(Hub, "status", lambda _: answers.pop(0))
    check_source("org/model", ["config.json"])
    assert answers == []


def test_revision_of_a_path_is_rejected(messages: Messages) -> None:
    for source in ("s3://bucket/model", "/models/bert", "./bert"):
        with messages.raises(ModelLoad):
            resolve(source, "main")


@pytest.mark.parametrize("known", HUB)
def test_cached_model_needs_one_of_its_files(
    offline: None, tmp_path: Path, known: str, messages: Messages
) -> None:
    kept = tmp_path / "hub/models--org--kept"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs/main").write_text("0" * 40)
    (kept / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (kept / "snapshots" / ("0" * 40) / known).write_text("{}")
    check_source("org/kept", HUB)
    with messages.raises(ModelLoad):
        check_source("org/kept", ["other.json"])


@pytest.mark.parametrize("source", ["weights.pt", "models/weights.pt"])
def test_file_name_is_a_path(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    monkeypatch.chdir(tmp_path)
    for look in (fetch_source, check_source):
        with messages.raises(ModelLoad):
            look(source)
    (tmp_path / "models").mkdir()
    (tmp_path / source).touch()
    assert fetch_source(source) == source
    check_source(source)


def test_missing_library_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    model = embed("org/model").model
    assert model is not None
    check_runtime(model)
    monkeypatch.setitem(sys.modules, "transformers", None)
    reason = (
        r"the runtime 'transformers' needs the package transformers: "
        r"pip install '\./jobs\[pipeline\]'"
    )
    for use in (check_runtime, partial(load_runtime, device=Device())):
        with pytest.raises(ModelLoad, match=reason):
            use(model)
    monkeypatch.setenv(OTHER_IMAGES, "true")
    check_runtime(model)  # the image of another group may have it
    with pytest.raises(ModelLoad, match=reason):
        load_runtime(model, Device())


def embed(source: str) -> Step:
    model = {
        **{"runtime": "transformers", "task": "feature-extraction", "source": source},
        **{"inputs": {"text": "text"}, "output": "embedding"},
    }
    return Step.model_validate({"name": "embed", "model": model})


def test_cache_directory_comes_from_the_environment(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cache_directory() == cache
    monkeypatch.delenv("BATCHINFERENCE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache/batchinference"


def write_model(folder: Path) -> dict[str, bytes]:
    contents = {"config.json": b"{}", "weights.bin": bytes(1000), "sub/vocab.txt.gz": b"no gzip"}
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return contents


def test_fetched_folder_has_all_files(tmp_path: Path, cache: Path) -> None:
    contents = write_model(tmp_path / "model")
    fetched = model_files._cached_copy(Location(str(tmp_path / "model")))
    assert fetched.is_relative_to(cache)
    result = {
        str(path.relative_to(fetched)): path.read_bytes()
        for path in fetched.rglob("*")
        if path.is_file()
    }
    assert result == contents


def test_fetched_file_keeps_its_name_and_an_empty_folder_is_rejected(
    tmp_path: Path, cache: Path, messages: Messages
) -> None:
    (tmp_path / "model.pt").write_bytes(b"weights")
    fetched = model_files._cached_copy(Location(str(tmp_path / "model.pt")))
    assert (fetched.name, fetched.read_bytes()) == ("model.pt", b"weights")
    (tmp_path / "model").mkdir()
    with messages.raises(ModelLoad):
        model_files._cached_copy(Location(str(tmp_path / "model")))


def test_model_is_fetched_again_only_after_a_change(tmp_path: Path, cache: Path) -> None:
    write_model(tmp_path / "model")
    first = model_files._cached_copy(Location(str(tmp_path / "model")))
    (first / "mark").touch()
    assert model_files._cached_copy(Location(str(tmp_path / "model"))) == first
    assert (first / "mark").exists()
    (tmp_path / "model/config.json").write_bytes(b'{"new": 1}')
    second = model_files._cached_copy(Location(str(tmp_path / "model")))
    assert second != first
    assert (second / "config.json").read_bytes() == b'{"new": 1}'


def test_replicas_that_share_a_cache_download_a_model_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them downloads it, on this node or another, and the others wait for it."""
    write_model(tmp_path / "model")
    model, waits = Location(str(tmp_path / "model")), Event()

    class Lock(FileLock):  # type: ignore[misc]
        def acquire(self, *args: Any, **options: Any) -> Any:
            waits.set()
            return super().acquire(*args, **options)

    target = model_files._cached_copy(model)
    target.rename(cache / "not-complete")
    monkeypatch.setattr(model_files, "_download", None)
    monkeypatch.setattr(model_files, "FileLock", Lock)
    with ThreadPoolExecutor() as pool, FileLock(f"{target}.lock"):
        other = pool.submit(model_files._cached_copy, model)
        assert waits.wait(10)
        (cache / "not-complete").rename(target)
    assert other.result() == target


def test_interrupted_download_leaves_no_model(tmp_path: Path, cache: Path) -> None:
    write_model(tmp_path / "model")
    model, target = Location(str(tmp_path / "model")), cache / "models/x"
    listed = [f"{model.path}/config.json", f"{model.path}/gone.bin"]
    with pytest.raises(FileNotFoundError):
        model_files._download(model, listed, target)
    assert not target.exists()
    model_files._download(model, [f"{model.path}/weights.bin"], target)
    assert [path.name for path in target.iterdir()] == ["weights.bin"]


@pytest.mark.parametrize("key", ["../evil.py", "sub/../../evil.py", "./a", "a//b", "a\\..\\b"])
def test_object_key_outside_of_the_model_is_refused(
    tmp_path: Path, cache: Path, key: str, messages: Messages
) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "evil.py").write_text("")
    model, target = Location(str(tmp_path / "model")), cache / "models/x"
    with messages.raises(ModelLoad):
        model_files._download(model, [f"{model.path}/{key}"], target)
    assert not target.exists()
    assert [file for file in cache.rglob("*") if file.is_file()] == []


FILES = {
    "transformers": {"task": "feature-extraction", "source": "s3://models/missing"},
    "sentenceTransformers": {"source": "s3://models/missing"},
    "torch": {"source": "s3://models/missing.pt", "trustSource": True},
    "torchvision": {"arch": "resnet18", "source": "s3://models/missing.pt"},
    "onnx": {"source": "s3://models/missing.onnx"},
}


@pytest.fixture(scope="module")
def models_bucket(s3: S3Server) -> S3Server:
    s3.client().create_bucket(Bucket="models")
    return s3


@pytest.fixture
def storage(
    models_bucket: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> dict[str, Any]:
    """Return the `storage` field for the server. The environment has only the access keys."""
    for name, value in models_bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("BATCHINFERENCE_CACHE", str(tmp_path / "cache"))
    return {"endpoint": models_bucket.endpoint, "region": "us-east-1"}


def step(runtime: str, **fields: Any) -> Step:
    named = "image" if runtime == "torchvision" else "text"
    model = {"runtime": runtime, "inputs": {named: "text"}, "output": "y", **fields}
    return Step.model_validate({"name": "own", "model": model})


@pytest.mark.parametrize("runtime", FILES)
def test_missing_model_is_rejected_at_check_and_load(
    runtime: str, storage: dict[str, Any], messages: Messages
) -> None:
    asked = step(runtime, **FILES[runtime], storage=storage)
    assert asked.model is not None
    with messages.raises(ModelLoad):
        check_step(asked)
    with messages.raises(ModelLoad):
        load_runtime(asked.model, Device())


def test_model_is_fetched_from_the_store(bert: str, s3: S3Server, storage: dict[str, Any]) -> None:
    files = [path for path in Path(bert).iterdir() if path.is_file()]
    s3.put("models", {f"bert/{path.name}": path.read_bytes() for path in files})
    fields = {"task": "feature-extraction", "inputs": {"text": "text"}}
    models, expected = (
        step("transformers", **fields, **source).model
        for source in ({"source": "s3://models/bert", "storage": storage}, {"source": bert})
    )
    assert models is not None
    assert expected is not None
    batch = {"text": np.array(["a cat", "dogs"], dtype=object)}
    vectors = [load_runtime(model, Device())(batch) for model in (models, expected)]
    assert np.array_equal(*vectors)


def test_tokenizer_of_vllm_fetches_no_weights(s3: S3Server, storage: dict[str, Any]) -> None:
    names = ["config.json", "tokenizer.json", "model-1.safetensors", "more/pytorch_model.bin"]
    s3.put("models", {f"llama/{name}": b"{}" for name in names})
    model = VllmModel.model_validate(vllm(source="s3://models/llama", storage=storage))
    pairs = (files_without_weights(model), names[:2]), (engine_source(model), names)
    for fetched, expected in pairs:
        paths = [path for path in Path(fetched).rglob("*") if path.is_file()]
        assert {str(path.relative_to(fetched)) for path in paths} == set(expected)
