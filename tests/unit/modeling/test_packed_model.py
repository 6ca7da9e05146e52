from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from argosy.modeling.attention import PACKED_ATTENTION, packed_attention
from argosy.modeling.loading import ModelSource, load_causal_lm
from argosy.modeling.microbatch import MicroBatchLimit
from argosy.modeling.packed_model import PackedModel
from argosy.modeling.packing import pack
from argosy.modeling.tiny import save_tiny_model
from argosy.types.batch import TrajectoryBatch
from argosy.types.errors import AbortedError, InternalError, InvalidInputError
from argosy.types.ids import SampleId
from argosy.types.ragged import Ragged

NO_LIMIT = MicroBatchLimit()


def plain_log_probs(folder: Path, prompts: Ragged, responses: Ragged, temperature: float = 1.0) -> Tensor:
    """Each sequence alone through an untouched Hugging Face model in float64, softmax over its full logits."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor(np.concatenate([prompt, response]), dtype=torch.int64)[None]
        with torch.no_grad():
            log_pi = torch.log_softmax(model(input_ids=ids).logits[0] / temperature, -1)
        found += [log_pi[len(prompt) - 1 + place, token] for place, token in enumerate(response.tolist())]
    return torch.stack(found)


def batch_of(prompts: Ragged, responses: Ragged) -> TrajectoryBatch:
    ids = [SampleId(0, row, 0) for row in range(len(prompts))]
    return TrajectoryBatch.build(ids, [row.tolist() for row in prompts], [row.tolist() for row in responses])


@pytest.mark.parametrize("share", [True, False])
def test_packed_equals_each_sequence_alone(
    tiny_folder: Path, tiny_model: PackedModel, group_of_sequences: tuple[Ragged, Ragged], share: bool
) -> None:
    prompts, responses = group_of_sequences
    with torch.no_grad():
        packed = pack(prompts, responses, share_prompts=share)
        found = tiny_model.response_stats(packed, temperature=0.6).log_probs
    expected = plain_log_probs(tiny_folder, prompts, responses, 0.6)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-5)


def test_gradients_of_shared_prompts_equal_those_of_separate_ones(
    tiny_folder: Path, group_of_sequences: tuple[Ragged, Ragged]
) -> None:
    prompts, responses = group_of_sequences
    gradients = []
    for share in (True, False):
        model = PackedModel(
            load_causal_lm(ModelSource(str(tiny_folder), dtype="float64", device="cpu")), compute_dtype=torch.float64
        )
        stats = model.response_stats(pack(prompts, responses, share_prompts=share), temperature=1.0)
        (stats.log_probs * torch.linspace(-1, 1, len(stats.log_probs))).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad for parameter in model.model.parameters()])
    # The model's norms and rotary tables are float32 whatever its parameters are.
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=2e-6)


def test_b22_neither_padding_nor_neighbours_change_log_probs(tiny_folder: Path, tiny_model: PackedModel) -> None:
    """Four tokens with 0, 3 and 7 left pads through the plain model, and packed after another sequence: all equal."""
    from transformers import AutoModelForCausalLM

    ids = [17, 42, 99, 7]
    plain: Any = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    found = []
    for pads in (0, 3, 7):
        row = torch.tensor([[0] * pads + ids])
        mask = torch.tensor([[0] * pads + [1] * 4])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            log_pi = torch.log_softmax(plain(input_ids=row, attention_mask=mask, position_ids=positions).logits[0], -1)
        found.append(log_pi[pads : pads + 3].gather(1, row[0, pads + 1 :, None])[:, 0])
    prompts = Ragged.from_rows([[5, 6, 7, 8, 9], ids[:1]], np.int32)
    responses = Ragged.from_rows([[11, 12], ids[1:]], np.int32)
    with torch.no_grad():
        found.append(tiny_model.response_stats(pack(prompts, responses), temperature=1.0).log_probs[2:])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-5)


@settings(deadline=None, max_examples=15)
@given(order=st.permutations(range(6)), limit=st.sampled_from([1, 2, 4, 6]), by_tokens=st.booleans())
def test_b20_results_belong_to_their_sample_in_any_order_and_split(
    tiny_model: PackedModel, order: list[int], limit: int, by_tokens: bool
) -> None:
    """Lengths 9, 2, 7, 3, 8, 1 in micro-batches: sample i keeps its own length and values."""
    rng = np.random.default_rng(5)
    lengths = [9, 2, 7, 3, 8, 1]
    prompts = Ragged.from_rows([rng.integers(3, 200, 4) for _ in lengths], np.int32)
    responses = Ragged.from_rows([rng.integers(3, 200, count) for count in lengths], np.int32)
    batch = batch_of(prompts, responses)
    expected = tiny_model.evaluate(batch, ["log_probs"], temperature=1.0, limit=NO_LIMIT).ragged("log_probs")
    cut = MicroBatchLimit(max_tokens=12 * limit) if by_tokens else MicroBatchLimit(max_sequences=limit)
    found = tiny_model.evaluate(batch.select(order), ["log_probs"], temperature=1.0, limit=cut)
    for row, sample in enumerate(found.sample_ids):
        values = found.ragged("log_probs")[row]
        assert len(values) == lengths[sample.position]
        np.testing.assert_allclose(values, expected[sample.position], atol=1e-5)


def test_evaluate_returns_every_column_and_the_ids_untouched(
    tiny_model: PackedModel, group_of_sequences: tuple[Ragged, Ragged]
) -> None:
    batch = batch_of(*group_of_sequences)
    found = tiny_model.evaluate(
        batch, ["log_probs", "entropy", "sum_pi_squared"], temperature=0.9, limit=MicroBatchLimit(max_tokens=40)
    )
    assert found.sample_ids == batch.sample_ids
    assert found.ragged("response_ids").values.tolist() == batch.ragged("response_ids").values.tolist()
    entropy, squares = found.ragged("entropy").values, found.ragged("sum_pi_squared").values
    assert ((entropy > 0) & (entropy <= np.log(259) + 1e-5)).all()
    assert ((squares >= np.exp(-entropy) - 1e-5) & (squares <= 1)).all()  # Jensen: Σπ² ≥ e^{-H}


def test_b12_a_prompts_own_eos_is_attended_and_the_final_eos_has_a_log_prob(tiny_model: PackedModel) -> None:
    """pad = eos = 2 somewhere else changes nothing here: no mask is ever built from ids."""
    batch = batch_of(Ragged.from_rows([[5, 2, 6]], np.int32), Ragged.from_rows([[7, 8, 2]], np.int32))
    other = batch_of(Ragged.from_rows([[5, 9, 6]], np.int32), Ragged.from_rows([[7, 8, 2]], np.int32))
    assert batch.ragged("response_mask").values.tolist() == [1, 1, 1]
    values, others = (
        tiny_model.evaluate(each, ["log_probs"], temperature=1.0, limit=NO_LIMIT).ragged("log_probs").values
        for each in (batch, other)
    )
    assert len(values) == 3
    assert np.abs(values - others).min() > 1e-6


def test_a_bfloat16_pass_is_close_to_float32_but_not_it(
    tiny_model: PackedModel, group_of_sequences: tuple[Ragged, Ragged]
) -> None:
    rough = PackedModel(tiny_model.model, compute_dtype=torch.bfloat16)
    with torch.no_grad():
        packed = pack(*group_of_sequences)
        exact_values = tiny_model.response_stats(packed, temperature=1.0).log_probs
        rough_values = rough.response_stats(packed, temperature=1.0).log_probs
    assert rough_values.dtype == torch.float32
    assert 0 < (exact_values - rough_values).abs().max().item() < 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_self_check_passes_on_what_can_be_packed(tmp_path: Path, tied: bool) -> None:
    folder = save_tiny_model(tmp_path / "m", tied=tied, kv_head_count=4, weight_scale=3.0)
    assert PackedModel(load_causal_lm(ModelSource(str(folder), device="cpu"))).self_check() < 1e-5


def other_architecture(folder: Path, name: str, **fields: Any) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    limits = {"vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0}
    config = AutoConfig.for_model(name, **(sizes | heads | limits | fields))
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("qwen2", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 3}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    ],
)
def test_other_architectures_pass_the_self_check(tmp_path: Path, name: str, fields: dict[str, Any]) -> None:
    folder = other_architecture(tmp_path / name, name, **fields)
    assert PackedModel(load_causal_lm(ModelSource(str(folder), device="cpu"))).self_check() < 1e-5


def test_an_architecture_that_packing_does_not_know_is_refused_and_never_trained_wrong(tmp_path: Path) -> None:
    folder = other_architecture(
        tmp_path / "gemma2", "gemma2", attn_logit_softcapping=None, final_logit_softcapping=0.01
    )
    with pytest.raises(InternalError, match="can't be trained packed"):
        PackedModel(load_causal_lm(ModelSource(str(folder), device="cpu"))).self_check()
    folder = other_architecture(tmp_path / "capped", "gemma2", attn_logit_softcapping=5.0)
    with pytest.raises(InvalidInputError, match="softcap"):
        PackedModel(load_causal_lm(ModelSource(str(folder), device="cpu"))).self_check()


def test_packed_attention_without_a_layout_is_a_defect_not_a_silent_leak() -> None:
    empty = torch.zeros(1, 1, 1, 1)
    with pytest.raises(InternalError, match=PACKED_ATTENTION):
        packed_attention(torch.nn.Identity(), empty, empty, empty, None)


def rows(*pairs: tuple[list[int], list[int]]) -> TrajectoryBatch:
    return batch_of(
        Ragged.from_rows([prompt for prompt, _ in pairs], np.int32),
        Ragged.from_rows([response for _, response in pairs], np.int32),
    )


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (rows(([1], [2]), ([], [3])), "e0-p1-k0-a0 has an empty prompt"),
        (rows(([1], [2]), ([4], [259])), "e0-p1-k0-a0 has token id 259 in response_ids"),
        (rows(([-1], [2])), "e0-p0-k0-a0 has token id -1 in prompt_ids"),
        (rows(([5] * 1000, [2] * 25)), "1025 tokens; the model's max_position_embeddings is 1024"),
    ],
)
def test_impossible_input_names_the_sample(tiny_model: PackedModel, batch: TrajectoryBatch, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        tiny_model.evaluate(batch, ["log_probs"], temperature=1.0, limit=NO_LIMIT)


def test_a_sample_twice_in_a_batch_is_refused(tiny_model: PackedModel) -> None:
    sample = SampleId(0, 1, 2)
    batch = TrajectoryBatch.build([sample, sample], [[1], [1]], [[2], [3]])
    with pytest.raises(InvalidInputError, match="e0-p1-k2-a0 is in the batch twice"):
        tiny_model.evaluate(batch, ["log_probs"], temperature=1.0, limit=NO_LIMIT)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_senseless_temperature_is_refused(tiny_model: PackedModel, temperature: float) -> None:
    with pytest.raises(InvalidInputError, match="temperature"):
        tiny_model.evaluate(rows(([1], [2])), ["log_probs"], temperature=temperature, limit=NO_LIMIT)


def test_unknown_columns_and_cancelled_calls(tiny_model: PackedModel) -> None:
    batch = rows(([1], [2]))
    with pytest.raises(InvalidInputError, match=r"unknown column 'values'.*log_probs"):
        tiny_model.evaluate(batch, ["values"], temperature=1.0, limit=NO_LIMIT)
    with pytest.raises(AbortedError):
        tiny_model.evaluate(batch, ["log_probs"], temperature=1.0, limit=NO_LIMIT, cancelled=lambda: True)


def test_an_empty_batch_is_answered_with_an_empty_one(tiny_model: PackedModel) -> None:
    found = tiny_model.evaluate(rows(), ["log_probs"], temperature=1.0, limit=NO_LIMIT)
    assert len(found) == 0
    assert found.has("log_probs")
