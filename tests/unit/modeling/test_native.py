"""The compiled layers and output head compute what the model's own code computes, in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from argosy.modeling.lean import make_lean, make_native
from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.log_probs import token_stats
from argosy.modeling.native import library
from argosy.modeling.native.layers import NativeLayer
from argosy.modeling.native.library import Workspace, load_library
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import pack
from argosy.modeling.tiny import save_tiny_model
from argosy.trainer.backends.building import enable_checkpointing
from argosy.types.ragged import Ragged

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs a C++ compiler and a CPU with AMX")

RAGGED = [(0, 5, 4), (1, 40, 33), (0, 5, 70), (2, 1, 1), (3, 70, 9), (1, 40, 2), (1, 40, 100)]
"""Prompt number, its length, length of the answer: groups whose rows are mixed, and an answer without rows."""
LONG = [(0, 300, 40), (0, 300, 350), (1, 2, 500)]
"""Longer than blocks of attention are."""
MANY = [(number // 4, 20, 45) for number in range(48)]
"""More rows than a chunk has."""


@dataclass(frozen=True)
class Found:
    """Of two micro-batches."""

    log_probs: Tensor
    entropy: Tensor
    sum_pi_squared: Tensor
    gradients: dict[str, Tensor]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of 32, three query heads for each key-value head, and a vocabulary that fills no tile."""
    path = tmp_path_factory.mktemp("native") / "model"
    return save_tiny_model(path, seed=3, hidden_size=96 * 2, head_count=6, kv_head_count=2, weight_scale=2.0)


def sequences(shape: list[tuple[int, int, int]]) -> tuple[Ragged, Ragged]:
    draw = np.random.default_rng(0)
    prompts = {number: draw.integers(3, 250, length) for number, length, _ in shape}
    rows = [prompts[number] for number, _, _ in shape]
    return Ragged.from_rows(rows, np.int32), Ragged.from_rows([draw.integers(3, 250, n) for *_, n in shape], np.int32)


def outcome(
    folder: Path,
    shape: list[tuple[int, int, int]],
    *,
    native: bool,
    lean: bool = True,
    checkpointing: bool = False,
    add: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Found:
    model = load_causal_lm(ModelSource(str(folder), device="cpu", dtype="float32" if lean else "float64"))
    if checkpointing:
        enable_checkpointing(model)
    packed_model = PackedModel(model, compute_dtype=dtype if lean else torch.float64)
    if lean:
        make_lean(model)
    if native:
        packed_model.workspace = Workspace()
        assert make_native(model, packed_model.workspace, add_to_gradient=add) == 2
    if add:
        packed_model.adds_to_gradient = True
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    prompts, responses = sequences(shape)
    stats: Any = None
    for _ in range(2):
        stats = packed_model.response_stats(
            pack(prompts, responses), temperature=0.7, entropy=True, sum_pi_squared=True
        )
        slope = torch.linspace(-1, 1, len(stats.log_probs), dtype=stats.log_probs.dtype)
        (stats.log_probs * slope + 0.3 * stats.entropy).sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return Found(stats.log_probs.detach(), stats.entropy.detach(), stats.sum_pi_squared, gradients)


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", [RAGGED, LONG, MANY], ids=["ragged", "long", "many"])
def test_it_is_nearer_to_float64_than_torchs_operations(folder: Path, shape: list[tuple[int, int, int]]) -> None:
    exact = outcome(folder, shape, native=False, lean=False)
    torch_only = outcome(folder, shape, native=False)
    found = outcome(folder, shape, native=True)
    for name in ("log_probs", "entropy", "sum_pi_squared"):
        ours, theirs = (error(getattr(each, name), getattr(exact, name)) for each in (found, torch_only))
        assert ours < 1.2 * theirs + 1e-4, (name, ours, theirs)
    assert found.gradients.keys() == exact.gradients.keys()
    for name, gradient in exact.gradients.items():
        ours, theirs = (error(each.gradients[name], gradient) for each in (found, torch_only))
        assert ours < min(1.1 * theirs, 0.05), (name, ours, theirs)


@pytest.mark.parametrize("how", [{"checkpointing": True}, {"add": True}], ids=str)
def test_computing_again_and_adding_in_place_change_no_bit(folder: Path, how: dict[str, Any]) -> None:
    plain, found = outcome(folder, RAGGED, native=True), outcome(folder, RAGGED, native=True, **how)
    assert torch.equal(found.log_probs, plain.log_probs)
    for name, gradient in plain.gradients.items():
        if "add" in how:  # sums of two micro-batches are rounded in another order
            torch.testing.assert_close(
                found.gradients[name], gradient, rtol=1e-4, atol=1e-4 * float(gradient.abs().max())
            )
        else:
            assert torch.equal(found.gradients[name], gradient), name


def test_the_number_of_threads_changes_no_bit(folder: Path) -> None:
    found = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        found.append(outcome(folder, RAGGED, native=True))
    torch.set_num_threads(1)
    assert torch.equal(found[0].log_probs, found[1].log_probs)
    for name, gradient in found[0].gradients.items():
        if "layers" in name:
            assert torch.equal(gradient, found[1].gradients[name]), name


def test_in_float32_the_layers_own_code_runs(folder: Path) -> None:
    plain = outcome(folder, RAGGED, native=False, dtype=torch.float32)
    found = outcome(folder, RAGGED, native=True, checkpointing=True, dtype=torch.float32)
    torch.testing.assert_close(found.log_probs, plain.log_probs, rtol=0, atol=1e-5)
    for name, gradient in plain.gradients.items():
        assert error(found.gradients[name], gradient) < 1e-4, name


def test_parameters_keep_their_names_and_dropout_stays_asleep(folder: Path) -> None:
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    enable_checkpointing(model)
    names = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    make_lean(model)
    make_native(model, Workspace())
    assert [(name, id(parameter)) for name, parameter in model.named_parameters()] == names
    layers = [module for module in model.modules() if isinstance(module, NativeLayer)]
    assert [layer.gradient_checkpointing for layer in layers] == [True, True]
    assert not any(child.training for layer in layers for child in layer.children())


def test_layers_that_it_cannot_compute_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    narrow = load_causal_lm(ModelSource(str(save_tiny_model(tmp_path / "narrow")), device="cpu"))  # heads of 16
    make_lean(narrow)
    assert make_native(narrow, Workspace()) == 0
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    make_lean(model)
    monkeypatch.setattr("argosy.modeling.lean.load_library", lambda: None)
    assert make_native(model, Workspace()) == 0


@pytest.mark.parametrize(("tokens", "vocabulary"), [(7, 45), (70, 1100), (4100, 33)])
@pytest.mark.parametrize("entropy", [False, True])
def test_the_output_head_equals_torchs_in_float64(tokens: int, vocabulary: int, entropy: bool) -> None:
    draw = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, 64, generator=draw).bfloat16().float().requires_grad_()
    weight = (0.2 * torch.randn(vocabulary, 64, generator=draw)).bfloat16().float().requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), generator=draw)
    slope = torch.randn(tokens, generator=draw)
    results: list[Any] = []
    for inputs, extra in (
        ((hidden, weight), {"compute_dtype": torch.bfloat16, "workspace": Workspace()}),
        ((hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()), {}),
    ):
        options: dict[str, Any] = {"temperature": 1.3, "entropy": entropy, "sum_pi_squared": True, **extra}
        stats = token_stats(*inputs, targets, **options)
        loss = (stats.log_probs * slope).sum() + (0 if stats.entropy is None else (stats.entropy * slope.flip(0)).sum())
        results.append((stats, torch.autograd.grad(loss, inputs)))
    (found, found_grads), (expected, expected_grads) = results
    torch.testing.assert_close(found.log_probs.double(), expected.log_probs, rtol=0, atol=2e-5)
    torch.testing.assert_close(found.sum_pi_squared, expected.sum_pi_squared.float(), rtol=1e-4, atol=1e-7)
    if entropy:
        torch.testing.assert_close(found.entropy, expected.entropy.float(), rtol=0, atol=5e-5)
    for ours, exact in zip(found_grads, expected_grads, strict=True):
        assert error(ours.double(), exact) < 0.006  # slopes are rounded to bfloat16


def test_the_workspace_grows_and_is_given_back() -> None:
    workspace = Workspace()
    first = workspace.address(1000)
    assert first % library._HUGE_PAGE == 0
    assert workspace.address(500) == first
    workspace.address(100 << 20)
    assert workspace.size >= 100 << 20
    workspace.release()
    assert workspace.size == 0
