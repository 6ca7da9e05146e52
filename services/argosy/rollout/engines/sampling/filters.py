"""Top-k, top-p and min-p as a mask over the logits. Ties are broken by the lower token id, so counts are exact."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST_WIDTH = 1024
"""How many of the likeliest tokens the nucleus is looked for in, before everything is sorted."""


def keep_mask(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Which tokens may be sampled, bool [R, V].

    Order: top-k; then top-p over what is left, renormalised (Holtzman 2020); then min-p against the likeliest
    (Nguyen 2024). The likeliest token always stays.

    Args:
        logits: After penalties and temperature, [R, V] float32.
        top_k: [R] int64, V where off.
        top_p: [R] float64, 1 where off.
        min_p: [R] float64, 0 where off.
    """
    vocab_size = logits.shape[1]
    counts = top_k.clamp(1, vocab_size)
    if bool((top_p < 1).any()):
        counts = _nucleus_counts(logits, counts, top_p)
    keep = torch.ones_like(logits, dtype=torch.bool)
    limited = (counts < vocab_size).nonzero()[:, 0]
    if len(limited):
        keep[limited] = _likeliest(logits[limited], counts[limited])
    if bool((min_p > 0).any()):
        peak = logits.amax(-1, keepdim=True)
        keep &= logits.double() >= peak.double() + min_p.log()[:, None]
    return keep


def _nucleus_counts(logits: Tensor, counts: Tensor, top_p: Tensor) -> Tensor:
    """Size of the smallest set of likeliest tokens, within the `counts` likeliest, that reaches top_p. [R]"""
    vocab_size = logits.shape[1]
    width = min(vocab_size, _FIRST_WIDTH)
    found, reached = _count_within(logits, counts, top_p, width)
    missing = (~reached).nonzero()[:, 0]
    if len(missing) and width < vocab_size:
        found[missing] = _count_within(logits[missing], counts[missing], top_p[missing], vocab_size)[0]
    return torch.where(top_p < 1, found, counts)


def _count_within(logits: Tensor, counts: Tensor, top_p: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Nucleus sizes looked for among the `width` likeliest, and whether each was found there. [R], [R]"""
    best = logits.topk(width).values.double()  # [R, width], descending
    inside = torch.arange(width, device=logits.device) < counts[:, None]
    # The total is that of the top-k set: a sum over `best` if it holds the set, else over everything (then k is off or
    # wider than `width`, and only "off" is exact here: a wider k falls through to the full sort below).
    kept = best.masked_fill(~inside, -torch.inf)
    everything = counts >= logits.shape[1]
    total = torch.where(everything, logits.double().logsumexp(-1), kept.logsumexp(-1))
    mass = (kept - total[:, None]).exp().cumsum(-1)  # [R, width]
    size = (mass < top_p[:, None]).sum(-1) + 1
    exact = everything | (counts <= width)
    reached = exact & ((size <= width) | (counts <= width))
    return torch.minimum(size, counts), reached


def _likeliest(logits: Tensor, counts: Tensor) -> Tensor:
    """Exactly the counts[r] likeliest tokens of each row, bool [R, V]."""
    width = int(counts.max())
    threshold = logits.topk(width).values.gather(1, counts[:, None] - 1)  # [R, 1]
    above = logits > threshold
    equal = logits == threshold
    room = counts - above.sum(-1)
    if bool((equal.sum(-1) > room).any()):
        equal &= equal.cumsum(-1) <= room[:, None]
    return above | equal
