"""The value head: one value per response token, of the state before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argosy.modeling.loading import ModelSource
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.packing import pack
from argosy.modeling.tiny import save_tiny_model
from argosy.modeling.value_model import PackedValueModel, ValueModel, load_value_model
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import InternalError, InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged
from unit.modeling.test_packed_model import other_architecture

NO_LIMIT = MicroBatchLimit()


def with_head(model: ValueModel) -> ValueModel:
    """The model with a head that says something."""
    with torch.no_grad():
        model.score.weight.copy_(torch.linspace(-1, 1, model.score.in_features)[None])
        model.score.bias.fill_(0.25)
    return model


@pytest.fixture(scope="module")
def critic_folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved critic on the tiny model."""
    folder = tmp_path_factory.mktemp("critic")
    with_head(load_value_model(ModelSource(str(tiny_folder), device="cpu"))).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def critic(critic_folder: Path) -> PackedValueModel:
    return PackedValueModel(load_value_model(ModelSource(str(critic_folder), device="cpu")))


def batch_of(prompts: Ragged, responses: Ragged) -> TrajectoryBatch:
    ids = [SampleId(0, row, 0) for row in range(len(prompts))]
    return TrajectoryBatch.build(ids, [row.tolist() for row in prompts], [row.tolist() for row in responses])


def values_alone(folder: Path, prompts: Ragged, responses: Ragged) -> Tensor:
    """Each sequence alone, in float64, by transformers' own class for such a folder."""
    from transformers import AutoModelForTokenClassification

    model: Any = AutoModelForTokenClassification.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    assert type(model).__name__ == "LlamaForTokenClassification"
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.int64)[None]
        with torch.no_grad():
            by_token = model.eval()(input_ids=ids).logits[0, :, 0]
        found += [by_token[len(prompt) - 1 + place] for place in range(len(response))]
    return torch.stack(found)


def test_b23_a_value_is_of_the_state_before_its_token(
    critic_folder: Path, critic: PackedValueModel, group_of_sequences: tuple[Ragged, Ragged]
) -> None:
    with torch.no_grad():
        found = critic.response_values(pack(*group_of_sequences))
    expected = values_alone(critic_folder, *group_of_sequences)
    assert expected.std() > 0.1
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-5)


def test_b23_the_last_token_changes_no_value(critic: PackedValueModel) -> None:
    """Its own state came before it; the values of all states are of tokens known by then."""
    prompts = Ragged.from_rows([[5, 6], [5, 6]], np.int32)
    answer = critic.evaluate(
        batch_of(prompts, Ragged.from_rows([[7, 8, 9], [7, 8, 99]], np.int32)), ["values"], limit=NO_LIMIT
    )
    one, other = answer.ragged("values")
    np.testing.assert_allclose(one, other, atol=1e-6)
    assert len(set(one.tolist())) == 3


@settings(deadline=None, max_examples=10)
@given(order=st.permutations(range(5)), limit=st.sampled_from([1, 2, 5]), by_tokens=st.booleans())
def test_b20_values_belong_to_their_sample_in_any_order_and_split(
    critic: PackedValueModel, order: list[int], limit: int, by_tokens: bool
) -> None:
    rng = np.random.default_rng(5)
    lengths = [9, 2, 7, 3, 1]
    prompts = Ragged.from_rows([rng.integers(3, 200, 4) for _ in lengths], np.int32)
    batch = batch_of(prompts, Ragged.from_rows([rng.integers(3, 200, count) for count in lengths], np.int32))
    expected = critic.evaluate(batch, ["values"], limit=NO_LIMIT).ragged("values")
    cut = MicroBatchLimit(max_tokens=12 * limit) if by_tokens else MicroBatchLimit(max_sequences=limit)
    found = critic.evaluate(batch.select(order), ["values"], limit=cut)
    for row, sample in enumerate(found.sample_ids):
        np.testing.assert_allclose(found.ragged("values")[row], expected[sample.position], atol=1e-5)


def test_a_new_critic_says_zero_and_its_head_learns_first(
    tiny_folder: Path, group_of_sequences: tuple[Ragged, Ragged]
) -> None:
    model = load_value_model(ModelSource(str(tiny_folder), device="cpu"))
    values = PackedValueModel(model).response_values(pack(*group_of_sequences))
    assert values.tolist() == [0.0] * len(values)
    (values - 1).square().mean().backward()  # type: ignore[no-untyped-call]
    assert model.score.weight.grad is not None
    assert float(model.score.weight.grad.abs().max()) > 0


def test_saved_and_loaded_is_the_same_critic_bit_for_bit(critic_folder: Path, tmp_path: Path) -> None:
    first = load_value_model(ModelSource(str(critic_folder), device="cpu"))
    first.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    again = load_value_model(ModelSource(str(tmp_path), device="cpu")).state_dict()
    assert again.keys() == first.state_dict().keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.state_dict().items())
    assert float(again["score.bias"]) == 0.25


def test_the_base_is_the_language_models_own(tiny_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    language_model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    own = load_value_model(ModelSource(str(tiny_folder), device="cpu")).state_dict()
    expected = {name: tensor for name, tensor in language_model.state_dict().items() if name != "lm_head.weight"}
    assert own.keys() - expected.keys() == {"score.weight", "score.bias"}
    assert all(torch.equal(tensor, own[name]) for name, tensor in expected.items())


def test_a_head_that_is_no_critics_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    classifier: Any = AutoModelForSequenceClassification.from_pretrained(tiny_folder, num_labels=3)
    classifier.save_pretrained(tmp_path)
    with pytest.raises(InvalidInputError, match=r"\(3, 64\).*wants score.weight \(1, 64\)"):
        load_value_model(ModelSource(str(tmp_path), device="cpu"))


def test_a_reward_models_head_without_bias_is_a_start(tiny_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    reward_model: Any = AutoModelForSequenceClassification.from_pretrained(tiny_folder, num_labels=1)
    reward_model.save_pretrained(tmp_path)
    found = load_value_model(ModelSource(str(tmp_path), device="cpu"))
    assert torch.equal(found.score.weight, reward_model.score.weight)
    assert found.score.bias.tolist() == [0.0]


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mistral"])
def test_other_architectures_have_values_too(tmp_path: Path, name: str) -> None:
    model = load_value_model(ModelSource(str(other_architecture(tmp_path / name, name)), device="cpu"))
    assert PackedValueModel(model).self_check() < 1e-5
    with_head(model).save_pretrained(tmp_path / "critic")
    again = load_value_model(ModelSource(str(tmp_path / "critic"), device="cpu"))
    assert torch.equal(again.score.weight, model.score.weight)


def test_an_architecture_that_packing_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_value_model(ModelSource(str(save_tiny_model(tmp_path / "m")), device="cpu"))
    packed = PackedValueModel(model)
    assert packed.self_check() < 1e-5
    plain = packed._plain
    monkeypatch.setattr(packed, "_plain", lambda *pair: plain(*pair) * 1.1)
    with pytest.raises(InternalError, match="can't be trained packed"):
        packed.self_check()


def test_bfloat16_values_are_close_and_float32(
    critic: PackedValueModel, group_of_sequences: tuple[Ragged, Ragged]
) -> None:
    rough = PackedValueModel(critic.model, compute_dtype=torch.bfloat16)
    assert rough.self_check() < 0.1
    with torch.no_grad():
        packed = pack(*group_of_sequences)
        exact_values, rough_values = critic.response_values(packed), rough.response_values(packed)
    assert rough_values.dtype == torch.float32
    assert 0 < (exact_values - rough_values).abs().max().item() < 0.3


def test_no_response_has_no_values(critic: PackedValueModel) -> None:
    found = critic.evaluate(
        batch_of(Ragged.from_rows([[1]], np.int32), Ragged.from_rows([[]], np.int32)), ["values"], limit=NO_LIMIT
    )
    assert found.ragged("values").lengths.tolist() == [0]
    with pytest.raises(InvalidInputError, match=r"unknown column 'log_probs'; known: values"):
        critic.evaluate(found, ["log_probs"], limit=NO_LIMIT)
