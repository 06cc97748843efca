"""Ray's stages for language models: refused rows, and models and adapters that cannot be loaded."""

from __future__ import annotations

import asyncio
import base64
import io
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from PIL import Image
from ray.llm._internal.batch.stages.base import StatefulStageUDF
from ray.llm._internal.batch.stages.chat_template_stage import ChatTemplateUDF
from ray.llm._internal.batch.stages.prepare_multimodal_stage import PrepareMultimodalUDF
from ray.llm._internal.batch.stages.tokenize_stage import TokenizeUDF
from ray.llm._internal.batch.stages.vllm_engine_stage import vLLMEngineStageUDF

from batchinference.pipeline.errors import JobFailure, ModelLoad
from batchinference.pipeline.runtimes.model_files import (
    ADAPTER_FILE,
    files_of,
    files_without_weights,
)
from batchinference.pipeline.runtimes.vllm_processor import (
    GuardedEngine,
    GuardedImages,
    GuardedTemplate,
    ImageInliner,
    IsolatingStage,
    guarded,
)
from batchinference.pipeline.runtimes.vllm_row_codec import ADAPTER, ERROR
from batchinference.pipeline.storage import retry
from batchinference.spec.models import VllmModel
from support.documents.vllm_models import vllm
from support.models.hub_cache import add_to_hub_cache
from support.servers.loopback import handled_by
from support.servers.openai import save_language_model

FAKES = Path(__file__).parents[2] / "support" / "models" / "fake_vllm"
TEMPLATE = (
    "{% if 'odd' in messages[0].content %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ messages[0].content }}"
)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("model")
    save_language_model(made)
    return str(made)


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(FAKES))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        del sys.modules[name]


def model(**fields: Any) -> VllmModel:
    return VllmModel.model_validate(vllm(**fields))


GUARDS: dict[Any, type[IsolatingStage]] = {
    ChatTemplateUDF: GuardedTemplate,
    vLLMEngineStageUDF: GuardedEngine,
    PrepareMultimodalUDF: GuardedImages,
}


def stage(kind: Any, spec: VllmModel, **arguments: Any) -> Any:
    guard = GUARDS.get(kind, IsolatingStage)
    named = {"data_column": "data", "expected_input_keys": [], **arguments}
    return guarded(kind, guard, "ask", spec, "")(**named)


def engine(spec: VllmModel, **sizes: int) -> Any:
    return stage(
        vLLMEngineStageUDF,
        spec,
        batch_size=8,
        max_concurrent_batches=1,
        model="",
        engine_kwargs={"pipeline_parallel_size": 1, **sizes},
        should_continue_on_error=True,
    )


def made_of(made: Any, *rows: Row) -> list[Row]:
    """Return the stage's output for a batch of rows without errors."""

    async def run() -> list[Row]:
        batch = {"data": [{ERROR: "", **row} for row in rows]}
        (out,) = [out async for out in made(batch)]
        found: list[Row] = out["data"]
        return found

    return asyncio.run(run())


def errors(rows: list[Row]) -> list[str]:
    return [row[ERROR] for row in rows]


def chat(text: str) -> Row:
    return {"messages": [{"role": "user", "content": text}]}


def test_chat_template_error_fails_its_row_only(folder: str) -> None:
    spec = model(source=folder, chatTemplate=TEMPLATE)
    made = stage(ChatTemplateUDF, spec, model="", chat_template=TEMPLATE)
    found = made_of(made, *map(chat, ["a", "b", "odd one", "c", "odd too"]))
    refused = "TemplateError: roles must alternate"
    assert errors(found) == ["", "", refused, "", refused]
    assert [row.get("prompt") for row in found] == ["a", "b", None, "c", None]


def test_chat_template_that_takes_too_much_memory_fails_its_row_only(folder: str) -> None:
    template = "{{ messages[0].content }}{{ 'x' * 10000000000 if messages[0].content == 'b' }}"
    spec = model(source=folder, chatTemplate=template)
    made = stage(ChatTemplateUDF, spec, model="", chat_template=template)
    found = made_of(made, *map(chat, "abc"))
    assert [row.get("prompt") for row in found] == ["a", None, "c"]
    assert "the chat template takes more than" in found[1][ERROR]


def test_template_that_refuses_the_messages_of_the_job_ends_the_job(folder: str) -> None:
    template = "{{ raise_exception('no system role') if messages[0].role == 'system' }}"
    spec = model(source=folder, system="Be brief.", chatTemplate=template)
    made = stage(ChatTemplateUDF, spec, model="", chat_template=template)
    with pytest.raises(ModelLoad, match=r"system: .*no system role"):
        made_of(made, chat("a"))


def test_tokenizer_error_fails_its_row_only(folder: str) -> None:
    made = stage(TokenizeUDF, model(source=folder), model="")
    found = made_of(made, {"prompt": "a"}, {"prompt": 5}, {"prompt": "bc"})
    assert [bool(error) for error in errors(found)] == [False, True, False]
    assert [len(row.get("tokenized_prompt", [])) for row in found] == [1, 0, 2]


def picture(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, kind)
    return buffer.getvalue()


@contextmanager
def image_server() -> Iterator[str]:
    """Serve a picture at `/a.png`, and content that is not a picture at other paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = picture("PNG") if self.path == "/a.png" else b"no picture"
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with handled_by(Handler) as port:
        yield f"http://127.0.0.1:{port}"


def data_uri_of(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def shown(url: Any, **fields: Any) -> Row:
    parts = [{"type": "image_url", "image_url": {"url": url}, "text": None, **fields}]
    return {"messages": [{"role": "user", "content": parts}]}


@pytest.mark.usefixtures("fake_vllm")
class TestImages:
    def made_of(self, folder: str, *rows: Row, allow: list[str] | None = None) -> list[Row]:
        inputs = {"photo": "image", "question": "text"}
        spec = model(source=folder, inputs=inputs, images=["photo"], allow=allow or [])
        arguments = {"model_config_kwargs": {"model": ""}, "chat_template_content_format": "string"}
        made = stage(PrepareMultimodalUDF, spec, **arguments)
        found = made_of(made, *rows)
        assert made.model_config.model == folder
        return found

    def test_invalid_image_fails_its_row_only(self, folder: str) -> None:
        broken = shown("data:image/png;base64,AAAA")
        found = self.made_of(folder, chat("a"), broken, shown(data_uri_of(picture("PNG"))))
        assert [error.partition(":")[0] for error in errors(found)] == [
            *("", "UnidentifiedImageError", "")
        ]
        assert found[2]["multimodal_data"] == {"image": [(2, 2)]}

    def test_addresses_are_fetched_by_the_rules_of_manifests(self, folder: str) -> None:
        with image_server() as url, image_server() as private:
            rows = [shown(f"{place}/{path}") for place in (url, private) for path in ("a.png", "b")]
            found = self.made_of(folder, *rows, shown("file:///etc/passwd"), allow=[url])
        assert found[0]["multimodal_data"] == {"image": [(2, 2)]}
        expected = ["", "cannot identify image file", *["Add its prefix to model.allow"] * 2,
                    "expected the address of an image: http://, https:// or data:"]  # fmt: skip
        for error, part in zip(errors(found), expected, strict=True):
            assert part in error
        assert [bool(error) for error in errors(found)] == [False, True, True, True, True]

    def test_engine_gets_texts_and_common_image_formats_only(self, folder: str) -> None:
        uri = data_uri_of(picture("PNG"))
        rows = [
            shown(data_uri_of(picture("EPS"))),  # Pillow would start Ghostscript
            shown("data:image/png,AAAA"),
            shown(None, type="image_embeds", image_embeds="AAAA"),
            shown(uri, uuid="1", image_embeds="AAAA"),
        ]
        *refused, cleaned = errors(self.made_of(folder, *rows))
        expected = ["cannot identify image", "is in base64", "text and image_url, not 'image_emb"]
        for error, part in zip(refused, expected, strict=True):
            assert part in error
        assert cleaned == ""
        ((message,),) = [ImageInliner(model())(row["messages"]) for row in rows[3:]]
        assert message["content"] == [{"type": "image_url", "image_url": {"url": uri}}]


class UnreachableStage(StatefulStageUDF):
    """A stage whose connection fails."""

    def __init__(self, data_column: str, expected_input_keys: list[str], model: str) -> None:
        super().__init__(data_column, expected_input_keys)

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        raise ConnectionError("nobody there")
        yield {}


def test_connection_error_ends_the_job() -> None:
    with pytest.raises(
        JobFailure, match="step 'ask' cannot continue: ConnectionError: nobody there"
    ):
        made_of(stage(UnreachableStage, model()), {}, {})


@pytest.mark.usefixtures("fake_vllm")
def test_load_error_names_step_and_model(folder: str, tmp_path: Path) -> None:
    for kind in (ChatTemplateUDF, TokenizeUDF):
        made = stage(kind, model(source=str(tmp_path)), model="")
        with pytest.raises(ModelLoad, match=f"'ask': the model '{tmp_path}' cannot be loaded: "):
            made_of(made, {})
    reason = f"step 'ask': the model '{folder}' cannot be loaded: ValueError: GPU memory util"
    with pytest.raises(ModelLoad, match=reason):
        made_of(engine(model(source=folder), gpu_memory_utilization=2), {})


@pytest.mark.usefixtures("fake_vllm")
def test_invalid_parameters_end_the_job_before_the_engine_loads(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**values: Any) -> None:
        raise ValueError(f"temperature must be non-negative, got {values['temperature']}")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the engine was loaded")

    monkeypatch.setattr("vllm.SamplingParams", refuse)
    monkeypatch.setattr("vllm.AsyncLLMEngine.from_engine_args", never)
    spec = model(source=folder, sampling={"temperature": -1})
    with pytest.raises(ModelLoad, match=r"sampling: .*temperature must be non-negative"):
        made_of(engine(spec), {})


@pytest.mark.usefixtures("fake_vllm")
@pytest.mark.parametrize("fields", [{}, {"images": ["question"], "prompt": "{question}"}])
def test_row_with_a_long_prompt_says_how_long(folder: str, fields: dict[str, Any]) -> None:
    long = {**asking(None), "tokenized_prompt": [3] * 6052}
    found, other = made_of(engine(model(source=folder, **fields)), long, asking(None))
    assert "the prompt has 6052 tokens, and the model takes 4096" in found[ERROR]
    assert other[ERROR] == ""
    assert ("tooLong" in found[ERROR]) == (not fields)


def asking(adapter: Any) -> Row:
    return {"prompt": "ab", "tokenized_prompt": [3, 4], "sampling_params": {"max_tokens": 9},
            ADAPTER: adapter}  # fmt: skip


@pytest.mark.usefixtures("fake_vllm")
class TestAdapters:
    @pytest.fixture
    def spec(self, folder: str, tmp_path: Path) -> VllmModel:
        """Return a model with one adapter, named `poem`."""
        (tmp_path / "poem").mkdir()
        (tmp_path / "poem" / ADAPTER_FILE).write_text("{}")
        return self.with_adapters(folder, loraPath=str(tmp_path))

    def with_adapters(self, folder: str, **fields: Any) -> VllmModel:
        inputs = {"question": "text", "style": "style"}
        return model(source=folder, inputs=inputs, adapter="style", **fields)

    def test_row_uses_its_adapter(self, spec: VllmModel) -> None:
        found = made_of(engine(spec), asking("poem"), asking(None))
        assert [row["generated_text"] for row in found] == [f"ba by {spec.lora_path}/poem", "ba"]

    def test_missing_adapter_fails_its_rows_only(self, spec: VllmModel) -> None:
        found = made_of(engine(spec), asking("poem"), asking("ode"), asking(None))
        missing = f"NoAdapter: there is no {spec.lora_path}/ode/{ADAPTER_FILE}"
        assert errors(found) == ["", missing, ""]

    def test_adapter_that_is_not_listed_fails_its_row(
        self, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("poem", "ode"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / ADAPTER_FILE).write_text("{}")
        below = self.with_adapters(folder, loraPath=str(tmp_path), loraAdapters=["poem"])
        found = made_of(engine(below), asking("poem"), asking("ode"), asking(["poem"]))
        assert errors(found) == [
            "",
            "NoAdapter: the adapter 'ode' is not in 'loraAdapters'",
            "NoAdapter: expected the name of an adapter, got list",
        ]
        asked: list[str] = []

        def download(name: str) -> Path:
            asked.append(name)
            return tmp_path

        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        (tmp_path / ADAPTER_FILE).write_text("{}")
        of_hub = self.with_adapters(folder, loraAdapters=["org/poem"])
        rows = [asking(name) for name in ("org/poem", "evil/repo", "s3://adapters/poem", "/etc")]
        assert [bool(error) for error in errors(made_of(engine(of_hub), *rows))] == [
            *(False, True, True, True)
        ]
        assert asked == ["org/poem"]

    def test_adapter_outside_of_its_folder_fails_its_row(self, folder: str, tmp_path: Path) -> None:
        for name in ("private", "adapters/poem"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / ADAPTER_FILE).write_text("{}")
        spec = self.with_adapters(folder, loraPath=str(tmp_path / "adapters"))
        outside = ["../private", "poem/../../private", str(tmp_path / "private"), "."]
        found = made_of(engine(spec), *(asking(name) for name in outside))
        assert errors(found) == [
            f"NoAdapter: '{name}' is not the name of an adapter below 'loraPath'"
            for name in outside
        ]

    def test_unreachable_storage_ends_the_job(
        self, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retry, "STORAGE", replace(retry.STORAGE, attempts=1))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        storage = {"endpoint": "http://127.0.0.1:1"}
        spec = self.with_adapters(folder, loraPath="s3://adapters", storage=storage)
        reason = "step 'ask': the adapter 'poem' cannot be fetched: OSError: "
        with pytest.raises(JobFailure, match=reason):
            made_of(engine(spec), asking(None), asking("poem"))

    def test_unreachable_hub_ends_the_job(
        self, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        reason = "step 'ask': the adapter 'org/poem' cannot be fetched: LocalEntryNotFoundError"
        with pytest.raises(JobFailure, match=reason) as caught:
            made_of(
                engine(self.with_adapters(folder, loraAdapters=["org/poem"])), asking("org/poem")
            )
        assert isinstance(caught.value.__cause__, LocalEntryNotFoundError)


def test_revision_of_the_hub_is_used(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    add_to_hub_cache(tmp_path, "org/model", "v2", Path(folder))
    spec = model(revision="v2")
    (found,) = made_of(stage(TokenizeUDF, spec, model=""), {"prompt": "ab"})
    assert len(found["tokenized_prompt"]) == 2
    assert Path(files_without_weights(spec)).parent.name == "snapshots"
    assert files_of(spec) == "org/model"
    with pytest.raises(ModelLoad, match="the model 'org/model' cannot be loaded"):
        made_of(stage(TokenizeUDF, model(revision="v3"), model=""), {"prompt": "a"})


def test_model_id_and_streamed_weights_are_not_fetched() -> None:
    assert files_without_weights(model()) == files_of(model()) == "org/model"
    spec = model(source="s3://models/llama", engine={"load_format": "runai_streamer"})
    assert files_of(spec) == "s3://models/llama"
