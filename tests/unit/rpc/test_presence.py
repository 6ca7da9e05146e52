"""Case F11: a zero that was set is a zero; what was not set has its documented default; unknown fields do no harm."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from argosy.api.common.v1 import context_pb2
from argosy.api.reward.v1 import reward_service_pb2 as reward
from argosy.api.rollout.v1 import generate_pb2
from argosy.api.trainer.v1 import objective_pb2
from argosy.rpc.codec import common, rollout, trainer
from argosy.rpc.codec import reward as reward_codec
from argosy.types.ids import SampleId
from argosy.types.records import (
    Failed,
    GlobalNormalizer,
    LossConfig,
    Mutation,
    SamplingParams,
    Scored,
    ScoreRequest,
    ScoreResult,
    UpdateConfig,
)

MAX = {"max_tokens": 5}
UPDATE = {"mini_batch_size": 4}

CODECS: dict[str, tuple[type[Message], Any, Any, dict[str, Any]]] = {
    "SamplingParams": (generate_pb2.SamplingParams, rollout.params_from_pb, SamplingParams(max_tokens=5), MAX),
    "LossConfig": (objective_pb2.LossConfig, trainer.loss_config_from_pb, LossConfig(), {}),
    "UpdateConfig": (
        objective_pb2.UpdateConfig,
        trainer.update_config_from_pb,
        UpdateConfig(LossConfig(), mini_batch_size=4),
        UPDATE,
    ),
}
"""Message → decoder, what it gives when nothing but the required is set, the required."""

REFUSED = {("SamplingParams", "max_tokens"), ("UpdateConfig", "ppo_epochs")}
"""Fields in which 0 makes no sense: tested on their own below."""


def optional_fields(message: type[Message]) -> list[str]:
    fields: Any = message.DESCRIPTOR.fields
    return [field.name for field in fields if field.has_presence and field.type != FieldDescriptor.TYPE_MESSAGE]


FIELDS = [
    (name, field)
    for name, (message, *_) in CODECS.items()
    for field in optional_fields(message)
    if (name, field) not in REFUSED
]


def test_f11_the_fields_whose_zero_is_real_are_optional() -> None:
    assert len(FIELDS) == 9 + 11 + 1
    assert {"temperature", "top_k", "top_p", "min_p", "seed", "min_tokens", "ignore_eos"} <= {
        name for _, name in FIELDS
    }
    assert optional_fields(context_pb2.RequestContext) == ["expected_step"]
    assert optional_fields(reward.Scored) == ["score"]
    assert optional_fields(objective_pb2.GlobalNormalizer) == ["token_count", "sequence_count"]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_f11_a_set_zero_is_honoured_and_an_unset_field_has_the_default(name: str, field: str) -> None:
    make, decode, default, required = CODECS[name]
    kind = make.DESCRIPTOR.fields_by_name[field].cpp_type
    zero: Any = "" if kind == FieldDescriptor.CPPTYPE_STRING else 0
    unset = make(**required)
    assert getattr(decode(unset), field) == getattr(default, field)
    assert decode(make.FromString(unset.SerializeToString())) == default
    zeroed = make.FromString(make(**required, **{field: zero}).SerializeToString())
    assert zeroed.HasField(field)
    assert getattr(decode(zeroed), field) == zero
    assert dataclasses.replace(decode(zeroed), **{field: getattr(default, field)}) == default


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(max_tokens=1, temperature=0.0, top_k=0, top_p=0.0, min_p=0.0, seed=0, min_tokens=0, stop=()),
        SamplingParams(5, 0.7, 40, 0.9, 0.1, 1.2, 2, (3, 0), ("a", "b"), True, True, -7),
        SamplingParams(max_tokens=5),
    ],
)
def test_f11_sampling_parameters_come_back_as_they_were(params: SamplingParams) -> None:
    sent = generate_pb2.SamplingParams.FromString(rollout.params_to_pb(params).SerializeToString())
    assert rollout.params_from_pb(sent) == params
    assert all(sent.HasField(cast("Any", field)) for field in optional_fields(generate_pb2.SamplingParams))


def test_f11_max_tokens_of_zero_and_unset_reach_the_engine_as_zero_which_it_refuses() -> None:
    assert rollout.params_from_pb(generate_pb2.SamplingParams()).max_tokens == 0
    assert rollout.params_from_pb(generate_pb2.SamplingParams(max_tokens=0)).max_tokens == 0


def test_f11_an_objective_comes_back_as_it_was() -> None:
    zeros = LossConfig("", 0.0, 0.0, 0.0, "", 0.0, 0.0, False, 0.0, "", 0.0, {"a": 0.0, "b": False, "c": ""})
    for loss in (zeros, LossConfig(), LossConfig(loss_scale_factor=1024.0, use_kl_loss=True, options={"tau": 0.5})):
        sent = objective_pb2.LossConfig.FromString(trainer.loss_config_to_pb(loss).SerializeToString())
        got = trainer.loss_config_from_pb(sent)
        assert got == loss
        assert {key: type(value) for key, value in got.options.items()} == {
            key: type(value) for key, value in loss.options.items()
        }


def test_f11_a_normaliser_of_zero_is_sent_and_one_that_is_unset_is_refused() -> None:
    zero = GlobalNormalizer(0.0, 0.0)
    assert trainer.normalizer_from_pb(trainer.normalizer_to_pb(zero)) == zero
    with pytest.raises(Exception, match="sequence_count"):
        trainer.normalizer_from_pb(objective_pb2.GlobalNormalizer(token_count=1))


def test_f11_a_reward_of_zero_is_a_score_and_no_score_is_a_failure() -> None:
    sample = SampleId(0, 0, 0)
    result = ScoreResult(sample, Scored(0.0, {"acc": 0.0, "ok": False, "pred": ""}, (0.0, 0.0)))
    sent = reward.ScoreResult.FromString(reward_codec.result_to_pb(result).SerializeToString())
    assert reward_codec.result_from_pb(sent) == result
    for empty in (reward.ScoreResult(), reward.ScoreResult(scored=reward.Scored())):
        outcome = reward_codec.result_from_pb(empty).outcome
        assert isinstance(outcome, Failed)
        assert outcome.reason == "bad_return"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_score_that_is_no_number_is_a_failure(value: float) -> None:
    for scored in (reward.Scored(score=value), reward.Scored(score=1, token_scores=[0, value])):
        outcome = reward_codec.result_from_pb(reward.ScoreResult(scored=scored)).outcome
        assert isinstance(outcome, Failed)
        assert outcome.reason == "bad_return"


@pytest.mark.parametrize("truth", ["", "4", 0, 4, 4.0, False, None, [], {"a": [1, None, "ü"]}, 2**70])
def test_f11_a_truth_keeps_its_value_and_type(truth: Any) -> None:
    item = ScoreRequest(SampleId(0, 0, 0), "gsm8k", "", "", truth, {"zero": 0, "no": False, "none": None})
    sent = reward.ScoreItem.FromString(reward_codec.item_to_pb(item, with_ids=False).SerializeToString())
    got = reward_codec.item_from_pb(sent)
    assert got == item
    assert type(got.ground_truth) is type(truth)


@pytest.mark.parametrize("step", [None, 0, 3])
def test_f11_an_expected_step_of_zero_is_not_the_same_as_none(step: int | None) -> None:
    ctx = Mutation("run", 1, "id", 5.0, step)
    sent = context_pb2.RequestContext.FromString(common.mutation_to_pb(ctx).SerializeToString())
    assert sent.HasField("expected_step") is (step is not None)
    assert common.mutation_from_pb(sent, 5.0) == ctx


FROM_THE_FUTURE = b"\x98\x06\x05" + b"\xa2\x06\x03abc"
"""Fields 99 (varint) and 100 (bytes), which no message of ours has."""


@pytest.mark.parametrize("name", sorted(CODECS))
def test_f11_a_newer_peer_s_unknown_fields_are_ignored(name: str) -> None:
    make, decode, default, required = CODECS[name]
    message = make.FromString(make(**required).SerializeToString() + FROM_THE_FUTURE)
    assert decode(message) == default


def test_f11_an_older_peer_that_knows_fewer_fields_gets_the_defaults() -> None:
    old = generate_pb2.SamplingParams()
    old.max_tokens = 5
    old.temperature = 0.0
    assert rollout.params_from_pb(old) == SamplingParams(max_tokens=5, temperature=0.0)
