"""Sends requests from a pipeline of Ray Data: an actor sends those of a batch together.

python tests/bench/peer_requests.py SOURCE URL BATCHES_AT_ONCE
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

ROWS = 64
"""Rows of a batch: as many as the endpoint takes at once."""


class Ask:
    """Asks an endpoint about the rows of a batch."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: Any = None

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        import aiohttp

        if self._session is None:  # it belongs to the event loop of the calls
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        tasks = map(self._one, batch["text"].tolist())
        yield {**batch, "answer": await asyncio.gather(*tasks)}

    async def _one(self, text: str) -> str:
        body = {"messages": [{"role": "user", "content": text}]}
        async with self._session.post(f"{self._url}/chat/completions", json=body) as response:
            answer = await response.json()
        return str(answer["choices"][0]["message"]["content"])


def main(source: str, url: str, at_once: str) -> None:
    os.environ["RAY_DATA_DEFAULT_ASYNC_BATCH_UDF_MAX_CONCURRENCY"] = at_once
    import ray.data

    rows = ray.data.read_parquet(source)
    asked = rows.map_batches(Ask, fn_constructor_args=(url,), batch_size=ROWS, concurrency=1)
    asked.write_parquet(f"{source}-answers")


if __name__ == "__main__":
    main(*sys.argv[1:])
