"""Logits → token ids, with the exact log-prob of each under the distribution that it was drawn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from argosy.rollout.engines.sampling.filters import keep_mask

_BLOCK = 256
"""Tokens per block of the two-level inverse CDF: a full cumulative sum over V would cost as much as the softmax."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How each of B rows is sampled; a field that no row uses is None, so that nothing is spent on it."""

    temperature: Tensor | None = None
    """[B] float32, 1 for greedy rows."""
    greedy: Tensor | None = None
    """[B] bool."""
    filtered: Tensor | None = None
    """Indices [R] of rows with a top-k, top-p or min-p."""
    top_k: Tensor | None = None
    """[R] int64, V where off."""
    top_p: Tensor | None = None
    """[R] float64."""
    min_p: Tensor | None = None
    """[R] float64."""


@dataclass(frozen=True, slots=True)
class Penalties:
    """The repetition penalty as flat places: logits[row, token] of tokens already seen. Repeated places are allowed."""

    rows: Tensor
    tokens: Tensor
    factor: Tensor
    """Per place, float32."""


@dataclass(frozen=True, slots=True)
class Banned:
    """Stop ids that are masked out (min_tokens), as flat places."""

    rows: Tensor
    tokens: Tensor


@torch.inference_mode()
def draw(
    logits: Tensor,
    uniforms: Tensor,
    settings: Settings,
    penalties: Penalties | None = None,
    banned: Banned | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample one token per row.

    Order: repetition penalty, banned ids, temperature, top-k, top-p, min-p; then everything left is renormalised. A
    greedy row takes the argmax (lowest id of equals) under temperature 1 and no filter.

    Args:
        logits: [B, V]; overwritten if float32.
        uniforms: [B] float64 in (0, 1).

    Returns:
        Token ids [B] int64 and log-probs [B] float32 (NaN where the logits hold NaN or +inf).
    """
    scores = _processed(logits.float(), settings, penalties, banned)  # [B, V]
    probs = scores.softmax(-1)
    tokens = _inverse_cdf(probs, uniforms)
    if settings.greedy is not None:
        tokens = torch.where(settings.greedy, scores.argmax(-1), tokens)
    # log Z from the peak: one pass less than logsumexp, and as exact (the peak's probability is at least 1/V).
    normalizer = scores.amax(-1) - probs.amax(-1).log()
    return tokens, scores.gather(1, tokens[:, None])[:, 0] - normalizer


def _processed(scores: Tensor, settings: Settings, penalties: Penalties | None, banned: Banned | None) -> Tensor:
    """Logits of the distribution that is sampled from, changed in place. [B, V]"""
    if penalties is not None:
        seen = scores[penalties.rows, penalties.tokens]
        scores[penalties.rows, penalties.tokens] = torch.where(
            seen > 0, seen / penalties.factor, seen * penalties.factor
        )
    if banned is not None:
        scores[banned.rows, banned.tokens] = -torch.inf
    if settings.temperature is not None:
        scores /= settings.temperature[:, None]
    if settings.filtered is not None:
        assert settings.top_k is not None
        assert settings.top_p is not None
        assert settings.min_p is not None
        part = scores[settings.filtered]
        keep = keep_mask(part, settings.top_k, settings.top_p, settings.min_p)
        scores[settings.filtered] = part.masked_fill_(~keep, -torch.inf)
    return scores


def _inverse_cdf(probs: Tensor, uniforms: Tensor) -> Tensor:
    """The token at which the cumulative probability passes uniform × total; never one of probability 0. [B]"""
    row_count, vocab_size = probs.shape
    padding = -vocab_size % _BLOCK
    blocks = (F.pad(probs, (0, padding)) if padding else probs).view(row_count, -1, _BLOCK)  # [B, V/block, block]
    outer = blocks.sum(-1).double().cumsum(-1)  # [B, V/block]
    target = uniforms[:, None] * outer[:, -1:]
    block = _first_above(outer, target)  # [B, 1]
    before = F.pad(outer, (1, 0)).gather(1, block)
    inner = blocks.gather(1, block[:, :, None].expand(-1, 1, _BLOCK))[:, 0].double().cumsum(-1)  # [B, block]
    token = block * _BLOCK + _first_above(inner, target - before)
    return token[:, 0].clamp_(max=vocab_size - 1)  # NaN again: the padding has no tokens


def _first_above(cumulative: Tensor, target: Tensor) -> Tensor:
    """First index whose cumulative value is above target; never past the last one with mass, by rounding. [B, 1]"""
    last = torch.searchsorted(cumulative, cumulative[:, -1:].contiguous())
    found = torch.minimum(torch.searchsorted(cumulative, target.contiguous(), right=True), last)
    # Only for NaN, where nothing is found: the log-prob will say so.
    return found.clamp_(max=cumulative.shape[1] - 1)
