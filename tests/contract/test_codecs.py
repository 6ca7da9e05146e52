"""Records → messages → bytes → messages → records, for the rollout and the trainer."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from argosy.api.rollout.v1 import generate_pb2 as pb
from argosy.api.rollout.v1 import rollout_service_pb2 as rollout_pb
from argosy.api.trainer.v1 import objective_pb2 as objective_pb
from argosy.rpc.codec import rollout as codec
from argosy.rpc.codec import trainer as trainer_codec
from argosy.rpc.errors import REASONS
from argosy.types.errors import CorruptDataError, InternalError, InvalidInputError, OverloadedError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import (
    FinishReason,
    Generated,
    GenerateRequest,
    GlobalNormalizer,
    LossConfig,
    RolloutStatus,
    SamplingParams,
    StepResult,
    TrainerStatus,
    UpdateConfig,
    VersionRun,
)
from contract.forms import request

M = TypeVar("M", bound=Message)


def wire(message: M) -> M:
    """What the other side reads."""
    return type(message).FromString(message.SerializeToString())


small = st.integers(0, 1 << 40)
token = st.integers(0, (1 << 31) - 1)
number = st.floats(allow_nan=False, allow_infinity=False)
single = st.floats(width=32, allow_nan=False)
versions = st.builds(PolicyVersion, st.text(min_size=1), small, st.text(min_size=1))


@st.composite
def generated(draw: st.DrawFn) -> Generated:
    runs = draw(st.lists(st.builds(VersionRun, versions, st.integers(1, 5)), max_size=3))
    count = sum(run.token_count for run in runs)
    ids = draw(st.lists(token, min_size=count, max_size=count))
    log_probs = draw(st.lists(single, min_size=count, max_size=count))
    return Generated(tuple(ids), tuple(log_probs), tuple(runs))


params = st.builds(
    SamplingParams,
    max_tokens=st.integers(0, 1 << 30),
    temperature=number,
    top_k=st.integers(-1 << 31, (1 << 31) - 1),
    top_p=number,
    min_p=number,
    repetition_penalty=number,
    min_tokens=st.integers(0, 1 << 30),
    stop_token_ids=st.lists(token, max_size=3).map(tuple),
    stop=st.lists(st.text(), max_size=3).map(tuple),
    include_stop_str_in_output=st.booleans(),
    ignore_eos=st.booleans(),
    seed=st.integers(-1 << 63, (1 << 63) - 1),
)
requests = st.builds(
    GenerateRequest,
    st.builds(SampleId, small, small, small, small),
    st.lists(token, max_size=5).map(tuple),
    params,
    st.sampled_from(["train", "val", "warmup"]),
    generated(),
    priority=st.integers(-1000, 1000),
    turn_start=st.integers(0, 1 << 20),
)


@given(requests)
def test_a_request_survives_the_wire(asked: GenerateRequest) -> None:
    message = wire(codec.sample_request_to_pb(asked))
    assert codec.sample_request_from_pb(message) == asked
    assert codec.key_from_pb(message.key) == asked.key == codec.key_from_pb(codec.parse_key(asked.key))


@pytest.mark.parametrize("key", ["", "train", "train:", "train:e0-p1", "e0-p0-k0-a0"])
def test_a_malformed_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInputError, match="looks like"):
        codec.parse_key(key)


def test_f11_an_unset_field_gets_the_default_and_a_set_zero_stays() -> None:
    """An old client, that knows of max_tokens only, and one that sets everything to zero."""
    assert codec.params_from_pb(wire(pb.SamplingParams(max_tokens=7))) == SamplingParams(7)
    assert codec.params_from_pb(wire(pb.SamplingParams())).max_tokens == 0  # which every engine refuses
    zeros = SamplingParams(0, 0.0, 0, 0.0, 0.0, 0.0, 0, (), (), False, False, 0)
    message = codec.params_to_pb(zeros)
    plain = [field.name for field in dataclasses.fields(SamplingParams) if not field.name.startswith("stop")]
    assert all(message.HasField(name) for name in plain)  # type: ignore[arg-type]
    assert codec.params_from_pb(wire(message)) == zeros


@pytest.mark.parametrize(
    ("name", "value"), [("top_k", 0.5), ("top_k", 1 << 40), ("temperature", "hot"), ("seed", 1 << 70), ("stop", (1,))]
)
def test_a_value_that_the_wire_cannot_carry_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=name) as caught:
        codec.params_to_pb(dataclasses.replace(SamplingParams(1), **{name: value}))
    assert caught.value.metadata["field"] == name


def test_d3_no_top_k_is_off() -> None:
    params: Any = dataclasses.replace(SamplingParams(1), top_k=None)  # type: ignore[arg-type]
    assert codec.params_from_pb(codec.params_to_pb(params)).top_k == -1


def test_each_finish_reason_has_a_place_on_the_wire() -> None:
    assert {codec.finish_reason_from_pb(codec.FINISH_REASONS[reason]) for reason in FinishReason} == set(FinishReason)
    with pytest.raises(CorruptDataError):
        codec.finish_reason_from_pb(pb.FINISH_REASON_UNSPECIFIED)


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_a_refusal_is_the_same_error_again(reason: str) -> None:
    error = REASONS[reason][0]("what was wrong", where="here")
    if isinstance(error, OverloadedError):
        error.retry_after_s = 1.75
    again = codec.refusal_from_pb(wire(codec.refusal_to_pb([codec.key_to_pb(request(0))], error)), "rollout-3")
    assert type(again) is type(error)
    assert again.message == "rollout-3: what was wrong"
    assert again.metadata == {"where": "here"}
    assert getattr(again, "retry_after_s", None) == getattr(error, "retry_after_s", None)


@given(
    st.builds(RolloutStatus, st.none(), st.sampled_from(sorted(codec.STATES)), small, small, small, small, small, small)
)
def test_a_rollouts_status_survives_the_wire(status: RolloutStatus) -> None:
    assert codec.rollout_status_from_pb(wire(codec.rollout_status_to_pb(status))) == status


def test_an_unknown_state_is_not_guessed() -> None:
    with pytest.raises(CorruptDataError):
        codec.rollout_status_from_pb(rollout_pb.GetStatusResponse())
    with pytest.raises(InternalError):
        codec.rollout_status_to_pb(RolloutStatus(None, "dreaming", 0, 0, 0, 0, 0, 0))


losses = st.builds(
    LossConfig,
    loss_mode=st.text(),
    clip_ratio_low=number,
    clip_ratio_high=number,
    clip_ratio_c=number,
    loss_agg_mode=st.text(),
    loss_scale_factor=st.none() | number,
    entropy_coeff=number,
    use_kl_loss=st.booleans(),
    kl_loss_coef=number,
    kl_loss_type=st.text(),
    temperature=number,
    options=st.dictionaries(st.text(), number | st.text() | st.booleans(), max_size=3),
)


@given(st.builds(UpdateConfig, losses, st.integers(1, 1 << 40), st.integers(1, 1 << 30), st.booleans(), small))
def test_an_update_config_survives_the_wire(config: UpdateConfig) -> None:
    assert trainer_codec.update_config_from_pb(wire(trainer_codec.update_config_to_pb(config))) == config


def test_f11_an_unset_loss_is_all_defaults_and_zeros_stay() -> None:
    assert trainer_codec.loss_config_from_pb(objective_pb.LossConfig()) == LossConfig()
    zeros = LossConfig("", 0.0, 0.0, 0.0, "", 0.0, 0.0, False, 0.0, "", 0.0)
    assert trainer_codec.loss_config_from_pb(wire(trainer_codec.loss_config_to_pb(zeros))) == zeros
    with pytest.raises(InvalidInputError, match="mini_batch_size"):
        trainer_codec.update_config_from_pb(objective_pb.UpdateConfig())


def test_f11_a_normalizer_of_zero_is_real_and_none_a_mistake() -> None:
    zero = GlobalNormalizer(0.0, 0.0)
    assert trainer_codec.normalizer_from_pb(wire(trainer_codec.normalizer_to_pb(zero))) == zero
    with pytest.raises(InvalidInputError, match="sequence_count"):
        trainer_codec.normalizer_from_pb(objective_pb.GlobalNormalizer(token_count=1.0))


@given(
    st.builds(StepResult, small, st.dictionaries(st.text(), number, max_size=4)),
    st.builds(TrainerStatus, small, st.none() | versions, small, st.booleans()),
)
def test_results_and_status_survive_the_wire(result: StepResult, status: TrainerStatus) -> None:
    assert trainer_codec.step_result_from_pb(wire(trainer_codec.step_result_to_pb(result))) == result
    assert trainer_codec.trainer_status_from_pb(wire(trainer_codec.trainer_status_to_pb(status))) == status
