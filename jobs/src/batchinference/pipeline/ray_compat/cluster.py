"""Ray cluster functions: authentication tokens, memory and automatic connection."""

from ray._private import auto_init_hook
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray._private.internal_api import get_memory_info_reply, get_state_from_address
from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

__all__ = [
    "AuthenticationTokenLoader",
    "auto_init_hook",
    "get_memory_info_reply",
    "get_state_from_address",
    "maybe_enable_token_auth_if_token_available",
]
