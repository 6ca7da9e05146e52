"""Chunked log-probs against float64 references written from the definitions, with loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from argosy.modeling import log_probs
from argosy.modeling.log_probs import token_stats


@pytest.fixture(autouse=True, params=[4, 8192])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Everything holds with the vocabulary in several tiles (the last one smaller) and in one."""
    monkeypatch.setattr(log_probs, "VOCABULARY_TILE", request.param)
    monkeypatch.setattr(log_probs, "BLOCK_LOGITS", 2 * request.param)  # blocks of two tokens
    return int(request.param)


def inputs(
    count: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    hidden = torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, vocabulary, (count,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def reference(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> list[tuple[float, float, float]]:
    """log π(target), H and Σπ² of each token, by the definitions."""
    found = []
    for state, target in zip(hidden.tolist(), targets.tolist(), strict=True):
        logits = [sum(h * w for h, w in zip(state, row, strict=True)) / temperature for row in weight.tolist()]
        total = math.fsum(math.exp(z) for z in logits)
        pi = [math.exp(z) / total for z in logits]
        entropy = -math.fsum(p * math.log(p) for p in pi)
        found.append((math.log(pi[target]), entropy, math.fsum(p * p for p in pi)))
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_equals_the_definitions_in_float64(temperature: float, chunk: int) -> None:
    hidden, weight, targets = inputs(7, 5, 11)
    stats = token_stats(
        hidden, weight, targets, temperature=temperature, chunk_tokens=chunk, entropy=True, sum_pi_squared=True
    )
    assert stats.entropy is not None
    assert stats.sum_pi_squared is not None
    found = torch.stack([stats.log_probs, stats.entropy, stats.sum_pi_squared], 1)
    expected = torch.tensor(reference(hidden, weight, targets, temperature), dtype=torch.float64)
    torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("entropy", [False, True])
def test_gradients_are_those_of_finite_differences(entropy: bool) -> None:
    hidden, weight, targets = inputs(7, 5, 11)

    def call(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        stats = token_stats(hidden, weight, targets, temperature=0.7, chunk_tokens=3, entropy=entropy)
        return (stats.log_probs,) if stats.entropy is None else (stats.log_probs, stats.entropy)

    assert torch.autograd.gradcheck(call, (hidden, weight))


def test_gradients_equal_autograd_through_plain_logits() -> None:
    hidden, weight, targets = inputs(20, 8, 50, torch.float32)
    stats = token_stats(hidden, weight, targets, temperature=1.3, chunk_tokens=6, entropy=True)
    assert stats.entropy is not None
    slopes = torch.linspace(-1, 1, 20)
    found = torch.autograd.grad((stats.log_probs * slopes + 0.1 * stats.entropy).sum(), (hidden, weight))

    log_pi = torch.log_softmax(hidden @ weight.T / 1.3, -1)
    plain = log_pi.gather(1, targets[:, None])[:, 0] * slopes - 0.1 * (log_pi.exp() * log_pi).sum(1)
    expected = torch.autograd.grad(plain.sum(), (hidden, weight))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden, weight, targets = inputs(4, 3, 9)
    token_stats(hidden, weight.detach(), targets, chunk_tokens=2).log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


def test_b8_temperature_is_in_the_log_probs() -> None:
    """Logits [2, 0, -1], token 0: -0.02058 at T=0.5 and -0.16985 at T=1."""
    weight = torch.tensor([[2.0], [0.0], [-1.0]])
    for temperature, expected in ((0.5, -0.02058), (1.0, -0.16985)):
        found = token_stats(torch.ones(1, 1), weight, torch.tensor([0]), temperature=temperature).log_probs
        assert found.item() == pytest.approx(expected, abs=5e-6)


def test_large_logits_stay_finite() -> None:
    weight = torch.tensor([[1.0], [-1.0], [0.0]])
    hidden = torch.full((2, 1), 3e4, requires_grad=True)
    stats = token_stats(hidden, weight, torch.tensor([0, 1]), entropy=True)
    assert stats.log_probs.tolist() == [0.0, -6e4]
    stats.log_probs.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())


def test_bfloat16_products_are_close_and_gradients_keep_the_masters_dtype() -> None:
    hidden, weight, targets = inputs(16, 32, 40, torch.float32)
    exact = token_stats(hidden, weight, targets).log_probs
    rough = token_stats(hidden, weight, targets, compute_dtype=torch.bfloat16).log_probs
    assert 0 < (exact - rough).abs().max().item() < 0.3
    rough.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


class LargestTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Remembers the most elements of any tensor that an operation made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else [result]:
            if isinstance(item, Tensor):
                self.elements = max(self.elements, item.numel())
        return result


def test_neither_tokens_by_vocabulary_nor_a_chunk_by_vocabulary_ever_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, width, vocabulary, chunk, tile = 500, 4, 3000, 100, 512
    monkeypatch.setattr(log_probs, "VOCABULARY_TILE", tile)
    hidden, weight, targets = inputs(tokens, width, vocabulary, torch.float32)
    with LargestTensor() as largest:
        stats = token_stats(hidden, weight, targets, chunk_tokens=chunk, entropy=True, sum_pi_squared=True)
        assert stats.entropy is not None
        (stats.log_probs + stats.entropy).sum().backward()  # type: ignore[no-untyped-call]
    assert largest.elements == chunk * tile


@pytest.mark.parametrize(("name", "value"), [("temperature", 0.0), ("temperature", -1.0), ("chunk_tokens", 0)])
def test_senseless_settings_are_refused_by_name(name: str, value: float) -> None:
    hidden, weight, targets = inputs(2, 2, 3)
    settings: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        token_stats(hidden, weight, targets, **settings)


def test_a_gradient_that_is_there_is_added_to_in_place() -> None:
    hidden, weight, targets = inputs(7, 5, 11)
    expected: list[Tensor] = []
    for place in (False, True):
        weight.grad = None
        kept: list[Tensor] = []
        for share in (slice(0, 3), slice(3, 7)):
            stats = token_stats(hidden[share], weight, targets[share], chunk_tokens=2, add_to_gradient=place)
            stats.log_probs.sum().backward()  # type: ignore[no-untyped-call]
            assert weight.grad is not None
            kept.append(weight.grad)
        assert kept[0] is kept[1]
        expected.append(kept[0])
    torch.testing.assert_close(expected[1], expected[0], rtol=1e-12, atol=1e-12)


def test_a_weight_that_is_cast_already_gives_the_same() -> None:
    hidden, weight, targets = inputs(9, 6, 20, torch.float32)
    found: list[tuple[Tensor, Tensor]] = []
    for cast in (None, weight.detach().bfloat16()):
        weight.grad = None
        stats = token_stats(hidden, weight, targets, compute_dtype=torch.bfloat16, cast=cast)
        stats.log_probs.sum().backward()  # type: ignore[no-untyped-call]
        assert weight.grad is not None
        found.append((stats.log_probs.detach(), weight.grad))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
