"""The lean forms of norms and tied embeddings compute what transformers' do, and keep less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from argosy.modeling import lean
from argosy.modeling.lean import LeanAttention, LeanNorm, make_lean
from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import pack
from argosy.modeling.tiny import save_tiny_model
from argosy.types.ragged import Ragged


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "BLOCK_ELEMENTS", 3 * 64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), seed=3)


def test_the_norm_equals_loops_over_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    weight = torch.randn(5, generator=generator, dtype=torch.float64)
    found = LeanNorm(nn.Parameter(weight), 1e-5)(hidden)
    for row in range(2):
        for place in range(4):
            values = hidden[row, place].tolist()
            mean = sum(value * value for value in values) / len(values)
            expected = [w * value / (mean + 1e-5) ** 0.5 for w, value in zip(weight.tolist(), values, strict=True)]
            assert found[row, place].tolist() == pytest.approx(expected, rel=1e-12)


def test_gradients_of_the_norm_are_those_of_finite_differences() -> None:
    hidden = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    norm = LeanNorm(nn.Parameter(torch.randn(6, dtype=torch.float64)), 1e-6)
    assert torch.autograd.gradcheck(lambda states, _: norm(states), (hidden, norm.weight))


def outcome(folder: Path, changed: bool, dtype: torch.dtype) -> tuple[Tensor, dict[str, Tensor], int]:
    """Log-probs, gradients of two micro-batches, and the bytes that the second one's graph keeps."""
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    if changed:
        make_lean(model)
    packed_model = PackedModel(model, compute_dtype=dtype)
    draw = np.random.default_rng(0)
    prompts = Ragged.from_rows([draw.integers(3, 250, 5)] * 4, np.int32)
    responses = Ragged.from_rows([draw.integers(3, 250, count) for count in (4, 9, 2, 7)], np.int32)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    log_probs = torch.empty(0)
    for _ in range(2):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            log_probs = packed_model.response_stats(pack(prompts, responses), temperature=1.0).log_probs
        log_probs.sum().backward()  # type: ignore[no-untyped-call]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return log_probs.detach(), gradients, sum(kept.values())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_the_network_and_its_gradients_stay_the_same(folder: Path, dtype: torch.dtype, tolerance: float) -> None:
    plain, plain_gradients, plain_bytes = outcome(folder, False, dtype)
    found, gradients, kept_bytes = outcome(folder, True, dtype)
    # Rounding to bfloat16 comes at the same place: the forward is the same bit for bit.
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-5 if dtype == torch.float32 else 0)
    assert gradients.keys() == plain_gradients.keys()
    for name, gradient in plain_gradients.items():
        assert gradients[name].layout == torch.strided, name
        difference = float((gradients[name] - gradient).norm() / gradient.norm())
        assert difference < tolerance, (name, difference)
    assert kept_bytes < plain_bytes


def test_an_untied_embedding_keeps_its_dense_gradient(tmp_path: Path) -> None:
    model = load_causal_lm(ModelSource(str(save_tiny_model(tmp_path / "model", tied=False)), device="cpu"))
    make_lean(model)
    assert model.get_input_embeddings().sparse is False


def test_an_unknown_architecture_keeps_its_norms(folder: Path) -> None:
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    model.config.model_type = "gemma"
    make_lean(model)
    assert not any(isinstance(module, LeanNorm) for module in model.modules())


def test_dropout_in_the_attention_keeps_its_own_code(folder: Path) -> None:
    model = load_causal_lm(ModelSource(str(folder), device="cpu"))
    layers = model.model.layers
    layers[0].self_attn.attention_dropout = 0.1
    make_lean(model)
    assert [isinstance(layer.self_attn, LeanAttention) for layer in layers] == [False] + [True] * (len(layers) - 1)
