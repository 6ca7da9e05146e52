"""What an engine says of a sample while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from argosy.types.records import Completion, TokenRun

Decode = Callable[[Sequence[int]], str]
"""Token ids → text without special tokens; for stop strings and `Completion.text`."""
Event = TokenRun | Completion
Deliver = Callable[[Event], None]
"""Called on the engine's thread."""
