"""What the server streams, as tokens with the log-probs of the distribution really sampled from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from argosy.types.errors import InternalError


@dataclass(frozen=True, slots=True)
class Piece:
    """New tokens of a segment."""

    token_ids: list[int]
    log_probs: list[float]
    finish: str
    """"" while it goes on; "stop", "length" or "abort"."""
    message: str
    """Why it was aborted."""
    weight_version: str
    cached_tokens: int


def read_piece(content: Mapping[str, Any], *, filtered: bool) -> Piece:
    """One streamed object. InternalError if it lacks a log-prob for a token.

    Args:
        filtered: Take the log-probs that are renormalised after top-k, top-p and min-p.
    """
    told = content.get("meta_info", {})
    token_ids = [int(token) for token in content.get("output_ids") or []]
    if filtered:
        log_probs = [float(value) for value in told.get("output_token_sampling_logprobs") or []]
    else:
        log_probs = [float(value[0]) for value in told.get("output_token_logprobs") or []]
    reason = told.get("finish_reason") or {}
    finish = str(reason.get("type", ""))
    if len(log_probs) != len(token_ids):
        if finish != "abort":
            raise InternalError(f"SGLang told {len(log_probs)} log-probs for {len(token_ids)} tokens")
        count = min(len(log_probs), len(token_ids))
        token_ids, log_probs = token_ids[:count], log_probs[:count]
    return Piece(
        token_ids,
        log_probs,
        finish,
        str(reason.get("message", "")),
        str(told.get("weight_version", "")),
        int(told.get("cached_tokens") or 0),
    )
