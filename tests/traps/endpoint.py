"""An endpoint on this machine that answers as overloaded or broken servers do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from support.servers.loopback import handled_by

Answer = tuple[int, dict[str, str], bytes]
Script = Callable[[str, int], Answer | None]
"""Returns the answer to a text that is sent for the given time; None for a good answer."""


def answer(body: Any, status: int = 200, **headers: str) -> Answer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return status, {"Content-Type": "application/json", **headers}, content


def chat(text: str | None) -> Answer:
    message = {"role": "assistant", "content": text}
    return answer(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
    )


def embedding(*values: Any) -> Answer:
    data = [{"object": "embedding", "index": 0, "embedding": list(values)}]
    return answer({"object": "list", "model": "m", "data": data})


@contextmanager
def endpoint(script: Script) -> Iterator[str]:
    """Run a server that echoes texts in capitals, or embeds them as their length, unless the script
    says otherwise. Yield the base URL of its API."""
    times: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = _text(request)
            times[text] += 1
            good = chat(text.upper()) if "messages" in request else embedding(float(len(text)), 1.0)
            status, headers, content = script(text, times[text]) or good
            if not status:
                self.close_connection = True
                return
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    with handled_by(Handler) as port:
        yield f"http://127.0.0.1:{port}/v1"


def _text(request: dict[str, Any]) -> str:
    """Return the text of a request for a chat or an embedding."""
    given = request["messages"][-1]["content"] if "messages" in request else request["input"]
    if isinstance(given, list):
        given = given[0]["text"] if given and isinstance(given[0], dict) else given[0]
    return str(given)
