"""Ray's stages for language models: refused rows, and models and adapters that cannot be loaded."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from ray.llm._internal.batch.stages.base import StatefulStageUDF
from ray.llm._internal.batch.stages.chat_template_stage import ChatTemplateUDF
from ray.llm._internal.batch.stages.prepare_multimodal_stage import PrepareMultimodalUDF
from ray.llm._internal.batch.stages.tokenize_stage import TokenizeUDF
from ray.llm._internal.batch.stages.vllm_engine_stage import vLLMEngineStageUDF

from batchinference.pipeline import retries
from batchinference.pipeline.failures import JobFailure, ModelLoad
from batchinference.pipeline.llm.carried import ERROR
from batchinference.pipeline.llm.files import ADAPTER_FILE, files_beside, files_of
from batchinference.pipeline.llm.requests import ADAPTER
from batchinference.pipeline.llm.stages import GuardedEngine, GuardedStage, guarded
from batchinference.pipeline.stores import object_store
from batchinference.spec.models import VllmModel
from support.documents.vllm_models import vllm
from support.models.hub_cache import add_to_hub_cache
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


def stage(kind: Any, spec: VllmModel, **arguments: Any) -> Any:
    guard = GuardedEngine if kind is vLLMEngineStageUDF else GuardedStage
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
    made = stage(ChatTemplateUDF, model(source=folder), model="", chat_template=TEMPLATE)
    found = made_of(made, *map(chat, ["a", "b", "odd one", "c", "odd too"]))
    refused = "TemplateError: roles must alternate"
    assert errors(found) == ["", "", refused, "", refused]
    assert [row.get("prompt") for row in found] == ["a", "b", None, "c", None]


def test_tokenizer_error_fails_its_row_only(folder: str) -> None:
    made = stage(TokenizeUDF, model(source=folder), model="")
    found = made_of(made, {"prompt": "a"}, {"prompt": 5}, {"prompt": "bc"})
    assert [bool(error) for error in errors(found)] == [False, True, False]
    assert [len(row.get("tokenized_prompt", [])) for row in found] == [1, 0, 2]


@pytest.mark.usefixtures("fake_vllm")
def test_broken_image_fails_its_row_only(folder: str) -> None:
    arguments = {"model_config_kwargs": {"model": ""}, "chat_template_content_format": "string"}
    made = stage(PrepareMultimodalUDF, model(source=folder), **arguments)
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    shown = {"messages": [{"role": "user", "content": [broken]}]}
    found = made_of(made, chat("a"), shown, chat("b"))
    assert [error.partition(":")[0] for error in errors(found)] == [
        "",
        "UnidentifiedImageError",
        "",
    ]
    assert made.model_config.model == folder


class Away(StatefulStageUDF):
    """A stage that loses its connection."""

    def __init__(self, data_column: str, expected_input_keys: list[str], model: str) -> None:
        super().__init__(data_column, expected_input_keys)

    async def udf(self, rows: list[Row]) -> AsyncIterator[Row]:  # type: ignore[override]
        raise ConnectionError("nobody there")
        yield {}


def test_connection_error_ends_the_job() -> None:
    with pytest.raises(JobFailure, match="step 'ask' cannot go on: ConnectionError: nobody there"):
        made_of(stage(Away, model()), {}, {})


@pytest.mark.usefixtures("fake_vllm")
def test_load_error_names_step_and_model(folder: str, tmp_path: Path) -> None:
    for kind in (ChatTemplateUDF, TokenizeUDF):
        made = stage(kind, model(source=str(tmp_path)), model="")
        with pytest.raises(ModelLoad, match=f"'ask': the model '{tmp_path}' cannot be loaded: "):
            made_of(made, {})
    reason = f"step 'ask': the model '{folder}' cannot be loaded: ValueError: GPU memory util"
    with pytest.raises(ModelLoad, match=reason):
        made_of(engine(model(source=folder), gpu_memory_utilization=2), {})


def asking(adapter: str | None) -> Row:
    return {"prompt": "ab", "tokenized_prompt": [3, 4], "sampling_params": {"max_tokens": 9},
            ADAPTER: adapter}  # fmt: skip


@pytest.mark.usefixtures("fake_vllm")
class TestAdapters:
    @pytest.fixture
    def spec(self, folder: str, tmp_path: Path) -> VllmModel:
        """A model with one adapter, named poem."""
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

    def test_address_as_adapter_is_rejected(self, folder: str) -> None:
        (found,) = made_of(engine(self.with_adapters(folder)), asking("s3://adapters/poem"))
        assert found[ERROR].startswith("NoAdapter: 's3://adapters/poem' is no id of the Hub")

    def test_adapter_outside_of_its_folder_fails_its_row(self, folder: str, tmp_path: Path) -> None:
        for name in ("private", "adapters/poem"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / ADAPTER_FILE).write_text("{}")
        spec = self.with_adapters(folder, loraPath=str(tmp_path / "adapters"))
        outside = ["../private", "poem/../../private", str(tmp_path / "private"), "."]
        found = made_of(engine(spec), *(asking(name) for name in outside))
        assert errors(found) == [
            f"NoAdapter: '{name}' is no name of an adapter below 'loraPath'" for name in outside
        ]

    def test_unreachable_storage_ends_the_job(
        self, folder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retries, "is_passing", lambda error: False)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
        storage = {"endpoint": "http://127.0.0.1:1"}
        spec = self.with_adapters(folder, loraPath="s3://adapters", storage=storage)
        object_store.cache_clear()
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
            made_of(engine(self.with_adapters(folder)), asking("org/poem"))
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
    assert Path(files_beside(spec)).parent.name == "snapshots"
    assert files_of(spec) == "org/model"
    with pytest.raises(ModelLoad, match="the model 'org/model' cannot be loaded"):
        made_of(stage(TokenizeUDF, model(revision="v3"), model=""), {"prompt": "a"})


def test_model_id_and_streamed_weights_are_not_fetched() -> None:
    assert files_beside(model()) == files_of(model()) == "org/model"
    spec = model(source="s3://models/llama", engine={"load_format": "runai_streamer"})
    assert files_of(spec) == "s3://models/llama"
