"""Calls vLLM's server for the OpenAI API within the process, without a port.

Parameters and responses are those of `vllm serve` and `vllm run-batch`. Only this module imports
modules of the server, because they move between versions of vLLM."""

from collections.abc import Awaitable, Callable
from typing import Any

from batchinference.spec.models import VllmModel

Server = Callable[[str, bytes], Awaitable[tuple[int, bytes]]]
"""Takes the path and the body of a request. Returns the status and the body of the response."""
_HEADERS = {"content-type": "application/json"}


async def server_of(llm: Any, model: VllmModel) -> Server:
    """Return the server of an engine for requests to its model."""
    import httpx
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    arguments, tasks = _arguments(llm, model), await llm.get_supported_tasks()
    app = build_app(arguments, tasks, llm.model_config)
    await init_app_state(llm, app.state, arguments, tasks)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://vllm/v1", timeout=None)  # noqa: S113 - no network

    async def answer(path: str, body: bytes) -> tuple[int, bytes]:
        response = await client.post(path, content=body, headers=_HEADERS)
        return response.status_code, response.content

    return answer


def _arguments(llm: Any, model: VllmModel) -> Any:
    """Return the arguments of the server: its defaults, and what the model defines."""
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    arguments.model = llm.model_config.model
    arguments.served_model_name = [model.source]
    arguments.chat_template = model.chat_template
    arguments.default_chat_template_kwargs = model.chat_template_args or None
    arguments.enable_auto_tool_choice = model.tool_call_parser is not None
    arguments.tool_call_parser = model.tool_call_parser
    arguments.structured_outputs_config = llm.vllm_config.structured_outputs_config
    return arguments
