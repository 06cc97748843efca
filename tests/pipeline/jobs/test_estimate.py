"""What a job costs: estimated from its first rows (`plan --estimate`), and after its run."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.estimate import Estimate
from batchinference.pipeline.execution import cost
from batchinference.pipeline.execution.cost import cost_of, cost_so_far
from batchinference.pipeline.ray_compat import NodeLifetime, node_lifetimes
from batchinference.pipeline.row_warnings import count_tokens
from batchinference.pipeline.steps import model as model_step
from batchinference.plan.groups import GROUP_LABEL
from batchinference.spec.report import PRICES_VARIABLE, PodPrices
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


def estimated(*steps: Document, prices: Sequence[str] = "000", code: int = 0) -> tuple[Any, str]:
    """Return the estimate of each step, and the text that `plan` prints."""
    read = {"format": "json", "paths": ["in.jsonl"]}
    Path("job.yaml").write_text(yaml.safe_dump(document(read=read, steps=list(steps))))
    command = ("plan", "job.yaml", "--estimate", "--sample", str(SAMPLE), "--prices", *prices)
    with patch.object(model_step, "load_runtime", load):
        shown, data = run_program(*command), run_program(*command, "-o", "json")
    assert (shown.exit_code, data.exit_code) == (code, code), shown.output
    return json.loads(data.stdout), shown.output


def test_tokens_of_all_rows_are_expected_from_the_first_ones(folder: Path) -> None:
    keep = {"name": "keep", "filter": "len(text) > 2"}
    steps = keep, step_with("ask", model=chat())
    (result,), shown = estimated(*steps, prices=("3", "1e6", "2e6"))
    assert result["rows"] == ROWS // 2
    low, high = result["inputTokens"]
    assert low < 3.5 * ROWS / 2 < high
    minimum, limit = result["outputTokens"]  # it is unknown how many of the other rows are filtered
    assert minimum < MADE * ROWS / 2 < limit
    assert result["price"] == [low + 2 * minimum, high + 2 * limit]
    assert f"{low:,} to {high:,}" in shown


def test_tokens_of_rows_that_are_computed_together_are_shared(folder: Path) -> None:
    for_one = partial(count_tokens, 0)  # as runtimes report the tokens of a batch
    with patch(f"{__name__}.count_tokens", lambda _, **tokens: for_one(**tokens)):
        (result,), shown = estimated(step_with("ask", model=chat()))
    assert result["inputTokens"] == [2.5 * ROWS] * 2
    assert shown.split()[-1] == "-"  # there are no prices


@pytest.mark.parametrize("unknown", [0, 5])
def test_range_is_as_wide_with_a_duplicate_or_an_unknown_number(folder: Path, unknown: int) -> None:
    lines = [json.dumps({"text": "x" * (1 + row % (SAMPLE - 1))}) for row in range(SAMPLE)]
    Path("in.jsonl").write_text("\n".join(lines))
    count = count_tokens

    def count_known(row: int, **tokens: int) -> None:
        if tokens["read"] != unknown:
            count(row, **tokens)

    with patch(f"{__name__}.count_tokens", count_known):
        (result,), _ = estimated(step_with("ask", model=chat(), dedupe=not unknown))
    low, high = result["inputTokens"]
    assert high - low > 100


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
        (result,), _ = estimated(step_with("ask", model=chat()), code=1)
    assert result["inputTokens"] is None
    assert "odd" in result["note"]
    Path("in.jsonl").write_text('{"text": "a"}\nno JSON\n')
    assert "1 row failed" in estimated(step_with("ask", model=chat()), code=1)[1]


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
    (result,), _ = estimated(step_with("ask", model=chat(output="answer"), cascade=cascade))
    assert "cascade" in result["note"]


def test_estimate_reads_and_writes_no_cache(folder: Path) -> None:
    estimated(step_with("ask", model=chat(), cache={"path": "./results"}))
    assert not Path("results").exists()


def test_settings_of_a_cluster_are_refused(folder: Path) -> None:
    Path("job.yaml").write_text(yaml.safe_dump(document(steps=[step_with("ask", model=chat())])))
    for option in ("--defaults", "--policy"):
        result = run_program("plan", "job.yaml", "--estimate", option, "job.yaml")
        assert result.exit_code == 2
        assert option in result.output


PRICES = PodPrices(currency="EUR", perHour={"head": 0.5, "cpu": 2.0}, before=1.5)
NOW = 100_000.0


def node(group: str | None, hours: float, end: float | None = None) -> NodeLifetime:
    """Return a node of a group that has existed for some hours."""
    return NodeLifetime({GROUP_LABEL: group} if group else {}, (end or NOW) - 3600 * hours, end)


@pytest.mark.parametrize(
    ("nodes", "amount"),
    [
        ([], 0.0),
        ([node("head", 2), node("cpu", 1), node("cpu", 0.5)], 1.0 + 2.0 + 1.0),
        ([node("cpu", 1, end=NOW - 3600)], 2.0),
        ([node("other", 1), node(None, 1)], 0.0),
        ([node("cpu", -1)], 0.0),
    ],
)
def test_each_node_costs_its_price_while_it_exists(
    nodes: list[NodeLifetime], amount: float
) -> None:
    result = cost_of(PRICES, nodes, NOW)
    assert (result.amount, result.before, result.currency) == (f"{amount:.4f}", "1.5000", "EUR")


def test_cost_names_the_share_of_earlier_passes() -> None:
    result = cost_of(PRICES, [node("cpu", 1)], NOW)
    assert str(result) == "3.50 EUR (2.00 in this run, 1.50 in earlier attempts)"
    assert str(result.model_copy(update={"before": 0.0})) == "2.00 EUR"


def test_run_has_no_cost_without_prices_or_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "node_lifetimes", lambda: 1 / 0)
    assert cost_so_far(None) is None
    assert cost_so_far(PRICES) is None


def test_prices_of_a_newer_operator_are_read() -> None:
    text = '{"currency": "EUR", "perHour": {"head": 0.5, "cpu": 2}, "before": 1.5, "newer": 1}'
    assert PodPrices.of({PRICES_VARIABLE: text}) == PRICES
    assert PodPrices.of({}) is None


@pytest.mark.usefixtures("one_ray")
def test_lifetimes_are_those_of_the_nodes_of_ray() -> None:
    (lifetime,) = node_lifetimes()
    assert "ray.io/node-id" in lifetime.labels
    assert lifetime.end is None
    assert 0 < lifetime.seconds(time.time()) < 24 * 3600
