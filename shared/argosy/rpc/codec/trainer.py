"""Objectives, results and the state of trainers."""

from __future__ import annotations

import dataclasses
from typing import Any

from argosy.api.trainer.v1 import objective_pb2 as pb
from argosy.api.trainer.v1 import trainer_service_pb2 as service_pb
from argosy.rpc.codec.common import optional_version_from_pb, scalars_from_pb, scalars_to_pb, version_to_pb
from argosy.types.errors import InvalidInputError
from argosy.types.records import GlobalNormalizer, LossConfig, StepResult, TrainerStatus, UpdateConfig, WeightsForm

_PLAIN_LOSS_FIELDS = tuple(field.name for field in dataclasses.fields(LossConfig) if field.name != "options")


_FORMS = {
    WeightsForm.MERGED: service_pb.WEIGHTS_FORM_MERGED,
    WeightsForm.ADAPTER: service_pb.WEIGHTS_FORM_ADAPTER,
    WeightsForm.BASE: service_pb.WEIGHTS_FORM_BASE,
}


def weights_form_to_pb(form: WeightsForm) -> service_pb.WeightsForm.ValueType:
    """What of the weights."""
    return _FORMS[form]


def weights_form_from_pb(value: service_pb.WeightsForm.ValueType) -> WeightsForm:
    """Unspecified is MERGED. InvalidInputError on a form that this build doesn't know."""
    found = {number: form for form, number in _FORMS.items()} | {
        service_pb.WEIGHTS_FORM_UNSPECIFIED: WeightsForm.MERGED
    }
    if value not in found:
        raise InvalidInputError(f"there is no weights form {value}", field="form")
    return found[value]


def loss_config_to_pb(loss: LossConfig) -> pb.LossConfig:
    """Every field set but a None."""
    fields: dict[str, Any] = {name: getattr(loss, name) for name in _PLAIN_LOSS_FIELDS}
    return pb.LossConfig(options=scalars_to_pb(loss.options), **fields)


def loss_config_from_pb(message: pb.LossConfig) -> LossConfig:
    """An unset field gets the record's default; a set zero stays zero (case F11)."""
    given = {name: getattr(message, name) for name in _PLAIN_LOSS_FIELDS if message.HasField(name)}  # type: ignore[arg-type]
    return LossConfig(options=scalars_from_pb(message.options), **given)


def normalizer_to_pb(normalizer: GlobalNormalizer) -> pb.GlobalNormalizer:
    """Both denominators."""
    return pb.GlobalNormalizer(token_count=normalizer.token_count, sequence_count=normalizer.sequence_count)


def normalizer_from_pb(message: pb.GlobalNormalizer) -> GlobalNormalizer:
    """InvalidInputError without one of the denominators: 0 is a real value, no value is a mistake."""
    for name in ("token_count", "sequence_count"):
        if not message.HasField(name):
            raise InvalidInputError(f"normalizer.{name} is not set", field=f"normalizer.{name}")
    return GlobalNormalizer(message.token_count, message.sequence_count)


def update_config_to_pb(config: UpdateConfig) -> pb.UpdateConfig:
    """Every field set."""
    return pb.UpdateConfig(
        loss=loss_config_to_pb(config.loss),
        mini_batch_size=config.mini_batch_size,
        ppo_epochs=config.ppo_epochs,
        shuffle=config.shuffle,
        seed=config.seed,
    )


def update_config_from_pb(message: pb.UpdateConfig) -> UpdateConfig:
    """InvalidInputError on a mini-batch or a number of passes below 1."""
    config = UpdateConfig(
        loss=loss_config_from_pb(message.loss),
        mini_batch_size=message.mini_batch_size,
        ppo_epochs=message.ppo_epochs if message.HasField("ppo_epochs") else 1,
        shuffle=message.shuffle,
        seed=message.seed,
    )
    for name in ("mini_batch_size", "ppo_epochs"):
        if getattr(config, name) < 1:
            raise InvalidInputError(f"config.{name} must be at least 1, got {getattr(config, name)}", field=name)
    return config


def step_result_to_pb(result: StepResult) -> pb.StepResult:
    """Step and metrics."""
    return pb.StepResult(step=result.step, metrics={name: float(value) for name, value in result.metrics.items()})


def step_result_from_pb(message: pb.StepResult) -> StepResult:
    """Step and metrics."""
    return StepResult(message.step, dict(message.metrics))


def trainer_status_to_pb(status: TrainerStatus) -> service_pb.TrainerStatus:
    """Where a trainer is."""
    return service_pb.TrainerStatus(
        step=status.step,
        version=None if status.version is None else version_to_pb(status.version),
        parameter_count=status.parameter_count,
        has_value_head=status.has_value_head,
        host_id=status.host_id,
        transports=status.transports,
    )


def trainer_status_from_pb(message: service_pb.TrainerStatus) -> TrainerStatus:
    """Where a trainer is."""
    return TrainerStatus(
        message.step,
        optional_version_from_pb(message),
        message.parameter_count,
        message.has_value_head,
        message.host_id,
        tuple(message.transports),
    )
