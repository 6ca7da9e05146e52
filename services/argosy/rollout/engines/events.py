"""What an engine says of a sample while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Callable

from argosy.types.records import Completion, TokenRun

Event = TokenRun | Completion
Deliver = Callable[[Event], None]
"""Called on the engine's thread."""
