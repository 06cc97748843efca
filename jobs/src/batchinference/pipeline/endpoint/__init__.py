"""Asking an HTTP endpoint: what is sent, how fast, how often again, and what an answer means."""

from __future__ import annotations

from batchinference.pipeline.endpoint.endpoint import Endpoint
from batchinference.pipeline.endpoint.errors import RequestFailed
from batchinference.pipeline.endpoint.forms import Form, form_of
from batchinference.pipeline.endpoint.keys import Keys

__all__ = ["Endpoint", "Form", "Keys", "RequestFailed", "form_of"]
