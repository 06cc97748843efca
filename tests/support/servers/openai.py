"""Runs `transformers serve`, an OpenAI-compatible server, with a small random model."""

from __future__ import annotations

import string
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.servers.ports import free_port

SECONDS_TO_START = 90
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_language_model(folder: Path) -> None:
    """Save a causal model whose tokens are letters."""
    import torch
    from tokenizers import Tokenizer, decoders, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "<unk>", *string.ascii_letters, *string.digits, *" .,:?!\n"]
    numbered = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=numbered, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        **small,
        vocab_size=len(words),
        intermediate_size=64,
        max_position_embeddings=512,
        pad_token_id=0,
        eos_token_id=1,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@contextmanager
def openai_server(folder: Path) -> Iterator[str]:
    """Serve the model in a folder, and yield the base URL. The model's name is the folder."""
    port = free_port()
    program = Path(sys.executable).parent / "transformers"
    arguments = [str(folder), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [str(program), "serve", *arguments], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            _wait_until_ready(f"http://127.0.0.1:{port}/health", process, folder / "server.log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(30)


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
