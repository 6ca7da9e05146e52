"""Log-probs of given tokens, entropy and Σπ² from hidden states, without ever holding [tokens, vocabulary].

Dimension letters: M response tokens, E hidden size, V vocabulary, C tokens of a chunk, W vocabulary entries of a tile.

With logits z = h·Wᵀ / temperature and π = softmax(z):
    log π_y = z_y - lse(z)          ∂/∂z_v = 1[v = y] - π_v
    H       = lse(z) - Σ_v π_v z_v  ∂/∂z_v = -π_v (log π_v + H)
    Σ_v π_v²                        (not differentiated: it only serves advantage baselines)

Logits exist in tiles [C, W]. The forward goes through a chunk's tiles with running sums that are rescaled whenever a
tile has a new largest logit (online softmax: Milakov & Gimelshein 2018, arXiv:1805.02867) and keeps one number per
token; the backward computes each tile's logits once more. Peak memory is C·W, whatever M and V are, and a tile is small
enough to stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from argosy.modeling.native.library import Workspace
from argosy.modeling.native.output_head import can_run, head_stats


@dataclass(frozen=True, slots=True, eq=False)
class TokenStats:
    """One value per response token, [M]."""

    log_probs: Tensor
    """log π(token), of logits / temperature."""
    entropy: Tensor | None = None
    """Of the same distribution, in nats."""
    sum_pi_squared: Tensor | None = None
    """Σ_v π_v², without gradient."""


VOCABULARY_TILE = 8192
"""Vocabulary entries whose logits exist at one time (W)."""
BLOCK_LOGITS = 1 << 20
"""Logits of a tile that go through all of softmax's operations before the next ones, on a CPU: 4 MiB in float32."""


def token_stats(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk_tokens: int = 1024,
    compute_dtype: torch.dtype | None = None,
    entropy: bool = False,
    sum_pi_squared: bool = False,
    cast: Tensor | None = None,
    add_to_gradient: bool = False,
    workspace: Workspace | None = None,
) -> TokenStats:
    """Statistics of `targets` under softmax(hidden · weightᵀ / temperature).

    Args:
        hidden: [M, E], of the position before each target.
        weight: The output head [V, E].
        targets: [M] int64.
        temperature: Logits are divided by it; > 0.
        chunk_tokens: Tokens whose logits exist at one time (C).
        compute_dtype: Of the matrix products; None = hidden's. Softmax and sums are at least float32.
        cast: `weight` in compute_dtype, where it is there already.
        add_to_gradient: Add the weight's gradient to its `grad` in place where there is one, in place of a second
            tensor that autograd would add. Only for plain `backward()`: `torch.autograd.grad` would find none.
        workspace: Where the compiled library may work, if it is there (`argosy.modeling.native`). It has its own
            chunks.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens must be at least 1, got {chunk_tokens}")
    dtype = compute_dtype or hidden.dtype
    if workspace is not None and can_run(hidden, weight, dtype):
        log_probs, entropies, squares = head_stats(
            hidden,
            weight,
            targets,
            workspace,
            temperature=temperature,
            entropy=entropy,
            sum_pi_squared=sum_pi_squared,
            add_to_gradient=add_to_gradient,
        )
        return TokenStats(log_probs, entropies if entropy else None, squares if sum_pi_squared else None)
    settings = _Settings(temperature, chunk_tokens, dtype, entropy, sum_pi_squared, add_to_gradient)
    head: Any = _ChunkedHead.apply  # untyped in torch
    log_probs, entropies, squares = head(hidden, weight, targets, weight.detach() if cast is None else cast, settings)
    return TokenStats(log_probs, entropies if entropy else None, squares if sum_pi_squared else None)


@dataclass(slots=True, eq=False)
class _RunningSums:
    """Of one chunk's tokens over the tiles so far; logits are relative to `top`. All are [C]."""

    top: Tensor
    """Largest logit."""
    total: Tensor
    """Σ e^(z - top)."""
    chosen: Tensor
    """The target's logit."""
    weighted: Tensor | None
    """Σ e^(z - top) (z - top), for the entropy."""
    squares: Tensor | None
    """Σ e^(2 (z - top))."""

    @classmethod
    def of_tile(cls, logits: Tensor, places: Tensor, want_entropy: bool, want_squares: bool) -> _RunningSums:
        """One tile's. `places` [C]: the target's column, if it is in this tile. Overwrites `logits` [C, W]."""
        top = logits.amax(1)
        chosen = logits.gather(1, places[:, None])[:, 0]
        logits.sub_(top[:, None])
        weights = logits.exp() if want_entropy else logits.exp_()  # unnormalised π
        total = weights.sum(1)
        squares = weights.square().sum(1) if want_squares else None
        weighted = weights.mul_(logits).sum(1) if want_entropy else None
        return cls(top, total, chosen, weighted, squares)

    @classmethod
    def joined(cls, blocks: list[_RunningSums]) -> _RunningSums:
        """Those of several blocks of tokens, end to end."""
        if len(blocks) == 1:
            return blocks[0]
        weighted = [block.weighted for block in blocks if block.weighted is not None]
        squares = [block.squares for block in blocks if block.squares is not None]
        return cls(
            torch.cat([block.top for block in blocks]),
            torch.cat([block.total for block in blocks]),
            torch.cat([block.chosen for block in blocks]),
            torch.cat(weighted) if weighted else None,
            torch.cat(squares) if squares else None,
        )

    def add(self, tile: _RunningSums, inside: Tensor) -> None:
        """Join another tile's sums; `inside` [C]: whose target is in that tile."""
        top = torch.maximum(self.top, tile.top)
        mine, other = self.top - top, tile.top - top  # ≤ 0
        mine_scale, other_scale = mine.exp(), other.exp()
        if self.weighted is not None and tile.weighted is not None:
            self.weighted = mine_scale * (self.weighted + mine * self.total) + other_scale * (
                tile.weighted + other * tile.total
            )
        if self.squares is not None and tile.squares is not None:
            self.squares = mine_scale.square() * self.squares + other_scale.square() * tile.squares
        self.total = mine_scale * self.total + other_scale * tile.total
        self.chosen = torch.where(inside, tile.chosen, self.chosen)
        self.top = top


@dataclass(frozen=True, slots=True)
class _Settings:
    """As `token_stats` has them."""

    temperature: float
    chunk_tokens: int
    compute_dtype: torch.dtype
    want_entropy: bool
    want_squares: bool
    add_to_gradient: bool


class _ChunkedHead(torch.autograd.Function):
    """Output head and softmax statistics, tile by tile in both directions."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, cast: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor, Tensor]:
        count = len(targets)
        accumulate = torch.promote_types(torch.float32, hidden.dtype)
        log_probs = torch.empty(count, dtype=accumulate, device=hidden.device)
        normalizers = torch.empty_like(log_probs)  # lse(z)
        entropies = torch.empty_like(log_probs) if settings.want_entropy else log_probs.new_empty(0)
        squares = torch.empty_like(log_probs) if settings.want_squares else log_probs.new_empty(0)
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _slices(count, settings.chunk_tokens):
                sums = _sums(hidden[part], cast, targets[part], settings, accumulate)
                log_total = sums.total.log()
                normalizers[part] = log_total + sums.top
                log_probs[part] = sums.chosen - sums.top - log_total
                if sums.squares is not None:
                    squares[part] = sums.squares / sums.total.square()
                if sums.weighted is not None:
                    entropies[part] = log_total - sums.weighted / sums.total
        ctx.save_for_backward(hidden, weight, targets, normalizers, entropies)
        ctx.cast, ctx.settings = cast, settings
        ctx.mark_non_differentiable(squares)
        return log_probs, entropies, squares

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_log_probs, grad_entropies, _ = grads
        hidden, weight, targets, normalizers, entropies = ctx.saved_tensors
        settings: _Settings = ctx.settings
        grad_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        there = weight.grad if settings.add_to_gradient and weight.is_leaf else None
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight) if there is None or there.is_sparse else there
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _slices(len(targets), settings.chunk_tokens):
                states = hidden[part].to(settings.compute_dtype)
                for tile in _tiles(weight):
                    head = ctx.cast[tile].to(settings.compute_dtype)
                    slopes = states @ head.T  # logits [C, W], in whose place their gradient comes
                    for rows in _blocks(slopes):
                        at = slice(part.start + rows.start, min(part.start + rows.stop, part.stop))
                        slopes[rows] = _slope(
                            _scaled(slopes[rows], settings.temperature, normalizers.dtype).sub_(normalizers[at, None]),
                            _places(targets[at], tile),
                            grad_log_probs[at],
                            (entropies[at], grad_entropies[at]) if settings.want_entropy else None,
                            settings.temperature,
                        )
                    if grad_hidden is not None:
                        _add_product(grad_hidden[part], slopes, head)
                    if grad_weight is not None:
                        _add_product(grad_weight[tile], slopes.T, states)
        return grad_hidden, None if grad_weight is there else grad_weight, None, None, None


def _sums(
    hidden: Tensor, weight: Tensor, targets: Tensor, settings: _Settings, accumulate: torch.dtype
) -> _RunningSums:
    """Of one chunk over the whole vocabulary."""
    states = hidden.to(settings.compute_dtype)
    blocks: list[_RunningSums] = []
    for tile in _tiles(weight):
        logits = states @ weight[tile].to(settings.compute_dtype).T  # [C, W]
        places, inside = _places(targets, tile)
        for number, rows in enumerate(_blocks(logits)):
            found = _RunningSums.of_tile(
                _scaled(logits[rows], settings.temperature, accumulate),
                places[rows],
                settings.want_entropy,
                settings.want_squares,
            )
            if tile.start == 0:
                blocks.append(found)
            else:
                blocks[number].add(found, inside[rows])
    return _RunningSums.joined(blocks)


def _slope(
    log_pi: Tensor,
    target: tuple[Tensor, Tensor],
    grad_log_probs: Tensor,
    of_entropy: tuple[Tensor, Tensor] | None,
    temperature: float,
) -> Tensor:
    """The gradient by h·Wᵀ of some tokens in one tile; overwrites their log π. `of_entropy`: values and gradients."""
    if of_entropy is not None:
        values, grads = of_entropy
        pi = log_pi.exp()
        slope = log_pi.add_(values[:, None]).mul_(grads[:, None]).add_(grad_log_probs[:, None]).mul_(pi).neg_()
    else:
        slope = log_pi.exp_().mul_(-grad_log_probs[:, None])
    places, inside = target
    slope.scatter_add_(1, places[:, None], (grad_log_probs * inside)[:, None])
    return slope if temperature == 1.0 else slope.div_(temperature)


def _slices(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _blocks(logits: Tensor) -> list[slice]:
    """Rows of a tile [C, W], so few at a time that what is done with them stays in the processor's cache.

    The same ones for all tiles of a chunk, also for a last, narrower one.
    """
    size = max(1, BLOCK_LOGITS // VOCABULARY_TILE) if logits.device.type == "cpu" else max(len(logits), 1)
    return _slices(len(logits), size)


def _tiles(weight: Tensor) -> list[slice]:
    """Rows of the output head, VOCABULARY_TILE at a time."""
    return [slice(start, start + VOCABULARY_TILE) for start in range(0, len(weight), VOCABULARY_TILE)]


def _places(targets: Tensor, tile: slice) -> tuple[Tensor, Tensor]:
    """Each target's column in the tile [C] (any valid one, if it is not there), and whether it is there [C]."""
    inside = (targets >= tile.start) & (targets < tile.stop)
    return torch.where(inside, targets - tile.start, 0), inside


def _scaled(logits: Tensor, temperature: float, dtype: torch.dtype) -> Tensor:
    """Divided by the temperature, in `dtype`; in their own memory if they have that type."""
    logits = logits.to(dtype)
    return logits if temperature == 1.0 else logits.div_(temperature)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right, summed in total's own precision."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
