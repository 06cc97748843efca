"""Create the input of this example: a batch file with chats, one of them with a picture."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

from PIL import Image

QUESTIONS = ("What is a batch?", "What is a queue?", "What is a token?")


def picture() -> str:
    """Return a red square as a data URI."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def main() -> None:
    seen = [
        {"type": "text", "text": "What colour is this?"},
        {"type": "image_url", "image_url": {"url": picture()}},
    ]
    contents: list[Any] = [*QUESTIONS, seen]
    with (Path(__file__).resolve().parent / "requests.jsonl").open("w") as file:
        for number, content in enumerate(contents):
            body = {"model": "any", "messages": [{"role": "user", "content": content}]}
            line = {"custom_id": f"request-{number}", "method": "POST"}
            line |= {"url": "/v1/chat/completions", "body": {**body, "max_tokens": 32}}
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
