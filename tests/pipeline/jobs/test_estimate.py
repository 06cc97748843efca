"""`batchinference plan --estimate`: tokens, device hours and prices from the first rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.estimate import Estimate
from batchinference.pipeline.row_warnings import count_tokens
from batchinference.pipeline.steps import model as model_step
from plugins.messages import Messages
from support.documents.http_models import chat
from support.documents.minimal import Document, document
from support.documents.minimal import model_step as step_with
from support.documents.vllm_models import vllm
from support.program import run_program
from support.servers.openai import save_language_model

ROWS, SAMPLE, MADE = 400, 40, 5


def answered(inputs: Mapping[str, Any], **_: Any) -> list[Any]:
    """Answer each row. The tokens of its prompt are its letters."""
    (texts,) = inputs.values()
    for row, text in enumerate(texts):
        count_tokens(row, read=len(text), made=MADE)
    return ["a"] * len(texts)


def load(model: Any, _: Any) -> Any:
    if model.runtime == "vllm":
        raise ModelLoad("no vLLM")
    return answered


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": "x" * (1 + number % 4)}) for number in range(ROWS)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    return tmp_path


def estimated(*steps: Document, prices: tuple[str, ...] = ("0",) * 3) -> tuple[list[Any], str]:
    """Return the estimate of each step, and the text that `plan` prints."""
    read = {"format": "json", "paths": ["in.jsonl"]}
    Path("job.yaml").write_text(yaml.safe_dump(document(read=read, steps=list(steps))))
    command = ("plan", "job.yaml", "--estimate", "--sample", str(SAMPLE), "--prices", *prices)
    with patch.object(model_step, "load_runtime", load):
        shown, data = run_program(*command), run_program(*command, "-o", "json")
    assert (shown.exit_code, data.exit_code) == (0, 0), shown.output
    return json.loads(data.stdout), shown.output


def test_tokens_of_all_rows_are_expected_from_the_first_ones(folder: Path) -> None:
    keep = {"name": "keep", "filter": "len(text) > 2"}
    steps = keep, step_with("ask", model=chat())
    (found,), shown = estimated(*steps, prices=("3", "1e6", "2e6"))
    assert found["rows"] == ROWS // 2
    low, high = found["inputTokens"]
    assert low < 3.5 * ROWS / 2 < high
    least, most = found["outputTokens"]  # it is unknown how many of the other rows are filtered
    assert least < MADE * ROWS / 2 < most
    assert found["price"] == [low + 2 * least, high + 2 * most]
    assert f"{low:,} to {high:,}" in shown


def test_what_is_unknown_is_said(folder: Path, messages: Messages) -> None:
    save_language_model(folder / "model")
    gpu = {"resources": {"gpu": 1}}
    model = vllm(source=str(folder / "model"), chat=False, output="other")
    steps = [step_with("embed", **gpu), step_with("own", model=model, **gpu)]
    (embed, own), shown = estimated(*steps, step_with("last", model=chat(output="last")))
    assert own["inputTokens"][0] < 2.5 * ROWS < own["inputTokens"][1]
    assert (own["outputTokens"], own["deviceHours"]) == (None, None)
    assert (embed["outputTokens"], embed["deviceHours"]) == ([MADE * ROWS] * 2, None)
    messages.check(embed["note"])
    messages.check(own["note"])
    assert own["note"] in shown


def test_price_has_the_hours_of_devices() -> None:
    known = Estimate("ask", 10, (1.5, 1.5), (1_000_000, 2_000_000), None)
    assert known.price((2.0, 0.5, 9.0)) == (3.5, 4.0)


def test_failed_rows_are_said(folder: Path) -> None:
    with patch(f"{__name__}.count_tokens", side_effect=ValueError("odd")):
        (found,), _ = estimated(step_with("ask", model=chat()))
    assert found["inputTokens"] is None
    assert "odd" in found["note"]


def test_prompts_of_skipped_rows_do_not_count(folder: Path) -> None:
    save_language_model(folder / "model")
    model = vllm(source=str(folder / "model"), chat=False, output="own")
    own = step_with("own", model=model, resources={"gpu": 1})
    (some,), _ = estimated({**own, "when": "len(text) == 4"})
    assert some["inputTokens"][0] < ROWS < some["inputTokens"][1]
    (none,), _ = estimated({**own, "when": "len(text) > 4"})
    assert none["inputTokens"] is None


def test_cascade_of_an_estimate_is_said(folder: Path) -> None:
    cascade = {"score": "len(text)", "agree": "text == answer", "precision": 0.9}
    (found,), _ = estimated(step_with("ask", model=chat(output="answer"), cascade=cascade))
    assert "cascade" in found["note"]


def test_estimate_reads_and_writes_no_cache(folder: Path) -> None:
    estimated(step_with("ask", model=chat(), cache={"path": "./results"}))
    assert not Path("results").exists()


def test_settings_of_a_cluster_are_refused(folder: Path) -> None:
    Path("job.yaml").write_text(yaml.safe_dump(document(steps=[step_with("ask", model=chat())])))
    for option in ("--defaults", "--policy"):
        result = run_program("plan", "job.yaml", "--estimate", option, "job.yaml")
        assert result.exit_code == 2
        assert option in result.output
