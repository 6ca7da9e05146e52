"""Tokens and log-probs as a pure function of (seed, purpose, sample id, position, weight version).

At each position the weights and the group give an order of the vocabulary, and the token of rank r has a probability
proportional to (r + 1)^-1.2 among the first RANKS. A sample's own noise picks a rank. So the samples of a group differ,
greedy ones are equal, every filter works as on a model, and log-probs are exactly those of what was sampled.

The model's end tokens are outside that order: they come with the hazard of the length model (`lengths.py`), whatever
the temperature, and that is their log-prob; the other tokens share the rest.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from argosy.rollout.engines.sampling.noise import noise_key, uniforms
from argosy.rollout.engines.simulated.lengths import Hazard
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import GenerateRequest, SamplingParams

RANKS = 256
"""Tokens that can be sampled at a position."""
_EXPONENT = 1.2
_TABLES = 256
"""Distributions that are kept."""

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Ranks:
    """One distribution over ranks."""

    probs: Floats
    cumulative: Floats
    log_probs: Floats


@dataclass(frozen=True, slots=True)
class Text:
    """What a sample will say from `start` on, up to and including the end token if there is one."""

    start: int
    token_ids: list[int]
    log_probs: list[float]


class Language:
    """Writes answers.

    Args:
        vocab_size: Ids are 0 … vocab_size - 1.
        eos_token_ids: The model's end tokens; the lowest one is written.
        hazard: Of the end at each position, as long as the context.
    """

    def __init__(self, vocab_size: int, eos_token_ids: Collection[int], hazard: Hazard) -> None:
        self._words = np.array([token for token in range(vocab_size) if token not in eos_token_ids], np.int64)
        self._rank_of = np.full(vocab_size, -1, np.int64)
        self._rank_of[self._words] = np.arange(len(self._words))
        self._eos = min(eos_token_ids) if eos_token_ids else None
        self._hazard = hazard
        self._count = min(RANKS, len(self._words))

    def write(self, request: GenerateRequest, version: PolicyVersion, start: int, stop: int) -> Text:
        """Tokens of positions start … stop - 1, fewer if an end token comes first."""
        params = request.params
        greedy = is_greedy(params)
        hazard = self._hazards(request, start, stop)
        ends = np.flatnonzero(self._noise("length", request, start, stop, greedy=greedy) < hazard)
        count = int(ends[0]) + 1 if len(ends) else stop - start
        ranks, log_probs = self._ranks(request, version, start, count, greedy=greedy)
        token_ids = self._words[(self._offsets(request, version, start, count) + ranks) % len(self._words)]
        with np.errstate(divide="ignore"):
            log_probs = log_probs + np.log1p(-hazard[:count])
        if len(ends):
            assert self._eos is not None
            token_ids[-1], log_probs[-1] = self._eos, np.log(hazard[count - 1])
        return Text(start, token_ids.tolist(), log_probs.tolist())

    def _hazards(self, request: GenerateRequest, start: int, stop: int) -> Hazard:
        """[stop - start]; 0 where no end token may come."""
        if self._eos is None or request.params.ignore_eos:
            return np.zeros(stop - start)
        hazard = self._hazard[start:stop].copy()
        hazard[: max(0, request.params.min_tokens - start)] = 0
        return hazard

    def _noise(self, stream: str, request: GenerateRequest, start: int, stop: int, *, greedy: bool) -> Floats:
        """[stop - start] in (0, 1). Greedy answers don't depend on the seed or the sample, only on the group."""
        seed, purpose, sample = request.params.seed, request.purpose, request.sample_id
        if greedy:
            seed, purpose, sample = 0, "", SampleId(sample.data_epoch, sample.position, 0)
        key = noise_key(seed, f"{purpose}/{stream}", sample)
        return uniforms(np.full(stop - start, key, np.uint64), np.arange(start, stop))

    def _ranks(
        self, request: GenerateRequest, version: PolicyVersion, start: int, count: int, *, greedy: bool
    ) -> tuple[Ids, Floats]:
        """Ranks and their log-probs, [count] each."""
        params = request.params
        table = _table(self._count, *_filters(params))
        noise = np.zeros(count) if greedy else self._noise("token", request, start, start + count, greedy=False)
        ranks = np.minimum(np.searchsorted(table.cumulative, noise, side="right"), len(table.probs) - 1)
        log_probs = table.log_probs[ranks]
        banned = min(count, params.min_tokens - start) if params.stop_token_ids else 0
        for index in range(banned):
            [offset] = self._offsets(request, version, start + index, 1)
            ranks[index], log_probs[index] = self._allowed(params, table, int(offset), float(noise[index]))
        return ranks, log_probs

    def _allowed(self, params: SamplingParams, table: _Ranks, offset: int, noise: float) -> tuple[int, float]:
        """A rank other than those of stop ids, which may not come before min_tokens, renormalised over the rest."""
        stops = self._rank_of[list(params.stop_token_ids)]
        banned = (stops[stops >= 0] - offset) % len(self._words)
        scores = np.arange(1, self._count + 1, dtype=np.float64) ** -_EXPONENT
        scores[banned[banned < self._count]] = 0
        probs = _filtered(scores / scores.sum(), *_filters(params))
        rank = min(int(np.searchsorted(np.cumsum(probs), noise, side="right")), int(np.flatnonzero(probs)[-1]))
        rank = rank if probs[rank] > 0 else int(np.flatnonzero(probs)[0])
        return rank, float(np.log(probs[rank]))

    def _offsets(self, request: GenerateRequest, version: PolicyVersion, start: int, count: int) -> Ids:
        """Where each position's order of the vocabulary begins: all that the weights decide. [count]"""
        key = _context_key(version.digest, request.sample_id.data_epoch, request.sample_id.position)
        noise = uniforms(np.full(count, key, np.uint64), np.arange(start, start + count))
        return np.asarray((noise * len(self._words)).astype(np.int64))


def is_greedy(params: SamplingParams) -> bool:
    """Whether only the likeliest token can come."""
    return params.temperature == 0 or params.top_k == 1 or params.top_p == 0


def _filters(params: SamplingParams) -> tuple[float, int, float, float]:
    """Temperature, top_k, top_p, min_p. Temperature 0 reports log-probs of temperature 1 without filters."""
    if params.temperature == 0:
        return 1.0, 0, 1.0, 0.0
    return params.temperature, max(params.top_k, 0), params.top_p, params.min_p


@functools.lru_cache(maxsize=_TABLES)
def _table(count: int, temperature: float, top_k: int, top_p: float, min_p: float) -> _Ranks:
    scores = np.arange(1, count + 1, dtype=np.float64) ** -_EXPONENT
    probs = _filtered(scores / scores.sum(), temperature, top_k, top_p, min_p)
    with np.errstate(divide="ignore"):
        return _Ranks(probs, np.cumsum(probs), np.log(probs))


def _filtered(probs: Floats, temperature: float, top_k: int, top_p: float, min_p: float) -> Floats:
    """The distribution after temperature, top-k, top-p and min-p; the likeliest comes first among what isn't 0."""
    with np.errstate(divide="ignore"):
        scores = np.log(probs) / temperature
    probs = np.exp(scores - scores.max())
    order = np.argsort(-probs, kind="stable")
    if top_k:
        probs[order[top_k:]] = 0
    probs /= probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    if top_p < 1:
        probs[order[1:][before[1:] >= top_p]] = 0
    probs[probs < min_p * probs.max()] = 0
    return np.asarray(probs / probs.sum())


@functools.lru_cache(maxsize=1 << 16)
def _context_key(digest: str, data_epoch: int, position: int) -> int:
    return int.from_bytes(
        hashlib.blake2b(f"{digest}\0{data_epoch}\0{position}".encode(), digest_size=8).digest(), "little"
    )
