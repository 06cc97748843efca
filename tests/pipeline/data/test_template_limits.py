"""A chat template that runs too long or takes too much memory makes a failed row."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from batchinference.pipeline.runtimes import template_limits
from batchinference.pipeline.runtimes.template_limits import TemplateTimeout, limited
from support.models.run_transformers import loaded, run

NESTED = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = (
    "{% set ns = namespace(x='x') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
    "{% endfor %}{{ ns.x }}"
)
SQUARED = (
    "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}"
)
HOSTILE = {
    "loops": (NESTED, "seconds"),
    "a repeated text": ("{{ 'x' * 10000000000 }}", "bytes"),
    "a text that doubles": (DOUBLED, "bytes"),
    "a filter": ("{{ 'x' | center(10000000000) }}", "bytes"),
    "a power": ("{{ 3 ** 1000000000 }}", "bits"),
    "products": (SQUARED, "bits"),
    "a long prompt": ("{{ 'x' * 2000000 }}", "characters"),
}


@pytest.fixture
def tokenizer(tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(template_limits, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(template_limits, "MEMORY_BYTES", 64 << 20)
    monkeypatch.setattr(template_limits, "TEXT_LENGTH", 1 << 20)
    monkeypatch.setattr(template_limits, "_watchdog", template_limits._Watchdog())
    return transformers.AutoTokenizer.from_pretrained(tiny("text_model"))


def rendered(tokenizer: Any, template: str, text: str = "a") -> Any:
    messages = [{"role": "user", "content": text}]
    apply = limited(tokenizer.apply_chat_template)
    return apply(messages, tokenize=False, chat_template=template)


@pytest.mark.parametrize(("template", "limit"), HOSTILE.values(), ids=HOSTILE)
def test_limit_is_an_error_of_the_row(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, template: str, limit: str
) -> None:
    if limit == "seconds":
        monkeypatch.setattr(template_limits, "SECONDS", 0.05)
    with pytest.raises(ValueError, match=f"chat template .*{limit}"):
        rendered(tokenizer, template)
    assert rendered(tokenizer, "{{ 2 * 3 }}{{ 2 ** 3 }}{{ 'x' * 3 }}") == "68xxx"


def test_other_rows_of_a_model_are_computed(
    tokenizer: Any, tiny: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_limits, "SECONDS", 0.05)
    slow = "{% if messages[0].content == 'b' %}" + NESTED + "{% endif %}{{ messages[0].content }}"
    transformers.AutoModelForCausalLM.from_pretrained(tiny("text_model")).save_pretrained(tmp_path)
    tokenizer.chat_template = slow
    tokenizer.save_pretrained(tmp_path)
    turns = [[{"role": "user", "content": text}] for text in "abc"]
    runtime = loaded("text-generation", str(tmp_path), ["turns"], sampling={"max_new_tokens": 2})
    for number, turn in enumerate(turns):
        if number == 1:
            with pytest.raises(ValueError, match="seconds"):
                run(runtime, {"turns": [turn]})
        else:
            assert len(run(runtime, {"turns": [turn]})) == 1


class LateTimeout:
    """A lock. The error of a timeout arrives when it is acquired for the first time."""

    acquired = 0

    def __enter__(self) -> None:
        self.acquired += 1
        if self.acquired == 1:
            raise TemplateTimeout

    def __exit__(self, *_: object) -> None:
        pass


def test_timeout_at_the_end_of_a_template_is_ignored() -> None:
    watchdog, thread = template_limits._Watchdog(), threading.get_ident()
    watchdog._lock = LateTimeout()  # type: ignore[assignment]
    watchdog._end(thread)
    assert watchdog._deadlines == {}


TRACED = """
import sys
from batchinference.pipeline.runtimes.template_limits import limited

limited(lambda: "x")()
sys.settrace(lambda *event: None)
(lambda: 1)()
"""


def test_code_can_be_traced_after_a_template() -> None:
    """A request to interrupt a thread that nothing answers lets traced code hang."""
    subprocess.run([sys.executable, "-c", TRACED], check=True, timeout=60)
