"""Which token a scoring model is read at (case B15), and that batching never changes a score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from argosy.modeling.loading import ModelSource, load_base
from argosy.modeling.value_model import ValueModel
from argosy.reward.models.batching import BatchLimits
from argosy.reward.models.network import ScoringNetwork, last_attended, load_network
from argosy.types.errors import AbortedError, InvalidInputError
from support.scoring import save_tiny_scorer

LIMITS = BatchLimits(max_tokens=64)
CASE = [11, 2, 12, 13, 2]
"""B15's ids without their padding; 2 is end and pad."""


def reference(network: ScoringNetwork, ids: list[int]) -> list[float]:
    """One sequence alone, without padding or mask, by the transformer itself; the head by hand, in float64."""
    model = network._model
    with torch.no_grad():
        hidden = getattr(model, model.base_model_prefix)(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        head: nn.Linear = model.score
        bias = 0 if head.bias is None else head.bias.double()
        values: list[float] = (head.weight.double() @ hidden.double() + bias).tolist()
    return values


@pytest.fixture(scope="module", params=["sequence", "token"])
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ScoringNetwork:
    """pad == eos, in float64, so that only a wrong place can make a difference."""
    path = save_tiny_scorer(tmp_path_factory.mktemp("scorer"), kind=request.param, pad=2)
    return load_network(ModelSource(str(path), "float64", "cpu"))


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        ([11, 2, 12, 13, 2, 2, 2], [1, 1, 1, 1, 1, 0, 0]),
        ([2, 2, 11, 2, 12, 13, 2], [0, 0, 1, 1, 1, 1, 1]),
        (CASE, [1, 1, 1, 1, 1]),
    ],
    ids=["right", "left", "none"],
)
def test_b15_last_attended_token_in_every_layout(network: ScoringNetwork, ids: list[int], mask: list[int]) -> None:
    place = int(last_attended(torch.tensor([mask]))[0])
    assert place == max(index for index, seen in enumerate(mask) if seen)
    found = network.padded(torch.tensor([ids]), torch.tensor([mask]))[0].tolist()
    assert found == pytest.approx(reference(network, CASE), abs=1e-9)


def test_b15_alone_and_with_a_longer_row(network: ScoringNetwork) -> None:
    longer = [*range(20, 27), 2, *range(30, 33)]
    alone = network.values([CASE], LIMITS)[0]
    short, long = network.values([CASE, longer], BatchLimits(max_tokens=64, fill=0.1))
    assert short == pytest.approx(alone, abs=1e-9)
    assert long == pytest.approx(reference(network, longer), abs=1e-9)


def test_b15_the_models_own_pooling_is_another_place(tmp_path: Path) -> None:
    """Why the head is applied by us: with pad == eos transformers reads a sequence that ends with eos too early."""
    path = save_tiny_scorer(tmp_path / "m", pad=2)
    network = load_network(ModelSource(str(path), "float64", "cpu"))
    own = network._model(input_ids=torch.tensor([CASE])).logits[0].tolist()
    assert own != pytest.approx(reference(network, CASE), abs=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scores_do_not_depend_on_the_batch(tmp_path: Path, dtype: str) -> None:
    network = load_network(ModelSource(str(save_tiny_scorer(tmp_path / "m", labels=3)), dtype, "cpu"))
    rng = np.random.default_rng(0)
    sequences = [rng.integers(3, 259, int(size)).tolist() for size in rng.integers(1, 60, 40)]
    tolerance = 1e-5 if dtype == "float32" else 1e-9
    for limits in (LIMITS, BatchLimits(max_tokens=4096, fill=0.01), BatchLimits(max_tokens=1)):
        for found, sequence in zip(network.values(sequences, limits), sequences, strict=True):
            assert found == pytest.approx(reference(network, sequence), abs=tolerance)


def test_encoder_pools_by_itself(tmp_path: Path) -> None:
    network = load_network(ModelSource(str(save_tiny_scorer(tmp_path / "m", kind="bert", labels=2)), "float64", "cpu"))
    alone = network._model(input_ids=torch.tensor([CASE])).logits[0].tolist()
    found = network.values([CASE, list(range(20, 40))], BatchLimits(max_tokens=64, fill=0.1))
    assert found[0] == pytest.approx(alone, abs=1e-9)


def test_a_critic_that_was_saved_is_a_reward_model(tmp_path: Path) -> None:
    """Also where transformers has no token classifier of its architecture, as config.json then says."""
    plain = save_tiny_scorer(tmp_path / "plain")
    base, _ = load_base(ModelSource(str(plain), "float32", "cpu"))
    weight = torch.linspace(-1, 1, 32)[None]
    critic = ValueModel(base, weight, torch.tensor([0.5]))
    critic.save_pretrained(tmp_path / "critic")
    source = ModelSource(str(tmp_path / "critic"), "float64", "cpu")
    network = load_network(source)
    assert network.label_count == 1
    assert network.values([CASE], LIMITS)[0] == pytest.approx(reference(network, CASE), abs=1e-9)
    config = (tmp_path / "critic" / "config.json").read_text()
    assert "LlamaForTokenClassification" in config
    (tmp_path / "critic" / "config.json").write_text(config.replace("LlamaForTokenClassification", "LlamaModel"))
    other = load_network(source)
    assert isinstance(other._model, ValueModel)
    assert other.values([CASE], LIMITS)[0] == pytest.approx(network.values([CASE], LIMITS)[0], abs=1e-9)


def test_model_without_a_head_is_refused(tmp_path: Path) -> None:
    """Its scores would be those of a random head."""
    from argosy.modeling.tiny import save_tiny_model

    with pytest.raises(InvalidInputError, match="no head"):
        load_network(ModelSource(str(save_tiny_model(tmp_path / "lm")), "float32", "cpu"))


def test_missing_head_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = save_tiny_scorer(tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    del tensors["score.weight"]
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(InvalidInputError, match=r"score\.weight is missing"):
        load_network(ModelSource(str(path), "float32", "cpu"))


def test_foreign_ids_and_empty_sequences_are_refused(network: ScoringNetwork) -> None:
    for sequence in ([5, 9999], [-1], []):
        with pytest.raises(InvalidInputError, match="outside"):
            network.values([sequence], LIMITS)


def test_gives_up_between_batches(network: ScoringNetwork) -> None:
    with pytest.raises(AbortedError):
        network.values([CASE], LIMITS, cancelled=lambda: True)


def test_bfloat16_keeps_the_head_exact(tmp_path: Path) -> None:
    """The head's product isn't rounded to bfloat16: scores have more than its 8 bits."""
    network = load_network(ModelSource(str(save_tiny_scorer(tmp_path / "m")), "bfloat16", "cpu"))
    found = [row[0] for row in network.values([[index, 9, 2] for index in range(10, 40)], LIMITS)]
    assert any(torch.tensor(value).bfloat16().item() != value for value in found)
