"""Ids, versions, contexts, arrays, weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import duration_pb2

from argosy.api.common.v1 import context_pb2, ids_pb2, values_pb2, weights_pb2
from argosy.types.errors import InvalidInputError
from argosy.types.ids import PolicyVersion, SampleId
from argosy.types.records import (
    AdapterSpec,
    Mutation,
    TensorSpec,
    TransferOffer,
    VersionRun,
    WeightChunk,
    WeightsManifest,
)

INT32 = np.dtype("<i4")
FLOAT32 = np.dtype("<f4")
"""numpy has no bfloat16: its bits travel as uint16."""


def duration_to_pb(seconds: float) -> duration_pb2.Duration:
    """Seconds, to the nanosecond."""
    duration = duration_pb2.Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def duration_from_pb(duration: duration_pb2.Duration) -> float:
    """Seconds."""
    return duration.ToNanoseconds() / 1e9


def sample_id_to_pb(sample: SampleId) -> ids_pb2.SampleId:
    """The id as a message."""
    return ids_pb2.SampleId(data_epoch=sample.data_epoch, position=sample.position, k=sample.k, attempt=sample.attempt)


def sample_id_from_pb(message: ids_pb2.SampleId) -> SampleId:
    """The id as a record."""
    return SampleId(message.data_epoch, message.position, message.k, message.attempt)


def version_to_pb(version: PolicyVersion) -> ids_pb2.PolicyVersion:
    """The version as a message."""
    return ids_pb2.PolicyVersion(lineage=version.lineage, step=version.step, digest=version.digest)


def version_from_pb(message: ids_pb2.PolicyVersion) -> PolicyVersion:
    """The version as a record. InvalidInputError without lineage or digest."""
    if not message.lineage or not message.digest:
        raise InvalidInputError(
            f"a policy version needs lineage and digest, got {message.lineage!r} and {message.digest!r}"
        )
    return PolicyVersion(message.lineage, message.step, message.digest)


def optional_version_from_pb(owner: Any, field: str = "version") -> PolicyVersion | None:
    """The version in a message's field, None if it is unset."""
    return version_from_pb(getattr(owner, field)) if owner.HasField(field) else None


def version_runs_to_pb(runs: Sequence[VersionRun]) -> list[ids_pb2.VersionRun]:
    """Run lengths as messages."""
    return [ids_pb2.VersionRun(version=version_to_pb(run.version), token_count=run.token_count) for run in runs]


def version_runs_from_pb(messages: Sequence[ids_pb2.VersionRun]) -> tuple[VersionRun, ...]:
    """Run lengths as records."""
    return tuple(VersionRun(version_from_pb(message.version), message.token_count) for message in messages)


def mutation_to_pb(ctx: Mutation, *, deadline_s: float | None = None) -> context_pb2.RequestContext:
    """The context of a mutation; `deadline_s`, what is left of the total deadline at this try, replaces ctx's."""
    return context_pb2.RequestContext(
        run_id=ctx.run_id,
        term=ctx.term,
        request_id=ctx.request_id,
        expected_step=ctx.expected_step,
        deadline=duration_to_pb(ctx.deadline_s if deadline_s is None else deadline_s),
    )


def read_context_to_pb(
    *, run_id: str = "", term: int = 0, deadline_s: float | None = None
) -> context_pb2.RequestContext:
    """The context of a call that changes nothing."""
    deadline = None if deadline_s is None else duration_to_pb(deadline_s)
    return context_pb2.RequestContext(run_id=run_id, term=term, deadline=deadline)


def mutation_from_pb(message: context_pb2.RequestContext, deadline_s: float) -> Mutation:
    """The context of a mutation that has so many seconds left (`argosy.rpc.gate.remaining_s`)."""
    expected_step = message.expected_step if message.HasField("expected_step") else None
    return Mutation(message.run_id, message.term, message.request_id, deadline_s, expected_step)


def int32s_to_bytes(values: Sequence[int]) -> bytes:
    """Token ids as int32, little-endian. InvalidInputError if one does not fit."""
    array = np.asarray(values, np.int64)
    if array.size and (array.min() < -(1 << 31) or array.max() >= 1 << 31):
        raise InvalidInputError(f"token ids must fit into int32, got {array.min()} … {array.max()}")
    return array.astype(INT32).tobytes()


def int32s_from_bytes(data: bytes, field: str) -> tuple[int, ...]:
    """Read back; InvalidInputError names the field if the length is not a multiple of 4."""
    return tuple(_column(data, INT32, field).tolist())


def float32s_to_bytes(values: Sequence[float]) -> bytes:
    """Log-probs as float32, little-endian."""
    return np.asarray(values, FLOAT32).tobytes()


def float32s_from_bytes(data: bytes, field: str) -> tuple[float, ...]:
    """Read back; InvalidInputError names the field if the length is not a multiple of 4."""
    return tuple(_column(data, FLOAT32, field).tolist())


def _column(data: bytes, dtype: np.dtype[Any], field: str) -> npt.NDArray[Any]:
    if len(data) % dtype.itemsize:
        raise InvalidInputError(f"{field} has {len(data)} bytes, not a multiple of {dtype.itemsize} ({dtype.name})")
    return np.frombuffer(data, dtype)


def scalars_to_pb(values: Mapping[str, float | str | bool]) -> dict[str, values_pb2.ScalarValue]:
    """Named numbers, texts and flags."""
    return {name: _scalar_to_pb(name, value) for name, value in values.items()}


def scalars_from_pb(messages: Mapping[str, values_pb2.ScalarValue]) -> dict[str, float | str | bool]:
    """Read back. InvalidInputError names an entry without a value."""
    return {name: _scalar_from_pb(name, message) for name, message in messages.items()}


def _scalar_to_pb(name: str, value: object) -> values_pb2.ScalarValue:
    if isinstance(value, (bool, np.bool_)):
        return values_pb2.ScalarValue(flag=bool(value))
    if isinstance(value, str):
        return values_pb2.ScalarValue(text=value)
    if isinstance(value, (int, float, np.integer, np.floating)):
        return values_pb2.ScalarValue(number=float(value))
    raise InvalidInputError(f"{name!r} must be a number, a text or a flag, got {type(value).__name__}")


def _scalar_from_pb(name: str, message: values_pb2.ScalarValue) -> float | str | bool:
    kind = message.WhichOneof("value")
    if kind is None:
        raise InvalidInputError(f"{name!r} has no value")
    value: float | str | bool = getattr(message, kind)
    return value


def manifest_to_pb(manifest: WeightsManifest) -> weights_pb2.WeightsManifest:
    """A manifest as a message."""
    tensors = [
        weights_pb2.TensorSpec(
            name=spec.name, shape=spec.shape, dtype=spec.dtype, checksum=spec.checksum, tied_to=spec.tied_to
        )
        for spec in manifest.tensors
    ]
    adapter = None if manifest.adapter is None else _adapter_to_pb(manifest.adapter)
    return weights_pb2.WeightsManifest(version=version_to_pb(manifest.version), tensors=tensors, adapter=adapter)


def manifest_from_pb(message: weights_pb2.WeightsManifest) -> WeightsManifest:
    """A manifest as a record."""
    tensors = tuple(
        TensorSpec(spec.name, tuple(spec.shape), spec.dtype, spec.checksum, spec.tied_to) for spec in message.tensors
    )
    adapter = _adapter_from_pb(message.adapter) if message.HasField("adapter") else None
    return WeightsManifest(version_from_pb(message.version), tensors, adapter)


def _adapter_to_pb(adapter: AdapterSpec) -> weights_pb2.AdapterSpec:
    return weights_pb2.AdapterSpec(
        base=version_to_pb(adapter.base),
        rank=adapter.rank,
        alpha=adapter.alpha,
        target_modules=adapter.target_modules,
    )


def _adapter_from_pb(message: weights_pb2.AdapterSpec) -> AdapterSpec:
    if message.rank < 1 or not message.target_modules:
        raise InvalidInputError("a manifest's adapter needs a rank from 1 and target modules", field="adapter")
    return AdapterSpec(version_from_pb(message.base), message.rank, message.alpha, tuple(message.target_modules))


def offer_to_pb(offer: TransferOffer) -> weights_pb2.TransferOffer:
    """A ticket as a message."""
    return weights_pb2.TransferOffer(
        transport=offer.transport,
        sync_id=offer.sync_id,
        version=version_to_pb(offer.version),
        endpoint=offer.endpoint,
        rank=offer.rank,
        world_size=offer.world_size,
        options=offer.options,
    )


def offer_from_pb(message: weights_pb2.TransferOffer) -> TransferOffer:
    """A ticket as a record. InvalidInputError without a transport, a sync or a version."""
    if not message.transport or not message.sync_id:
        raise InvalidInputError(
            f"a transfer offer needs transport and sync_id, got {message.transport!r} and {message.sync_id!r}",
            field="offer",
        )
    return TransferOffer(
        message.transport,
        message.sync_id,
        version_from_pb(message.version),
        message.endpoint,
        message.rank,
        message.world_size,
        dict(message.options),
    )


def weight_chunk_to_pb(chunk: WeightChunk) -> weights_pb2.WeightChunk:
    """A piece of a tensor as a message."""
    return weights_pb2.WeightChunk(
        name=chunk.name,
        offset=chunk.offset,
        data=bytes(chunk.data),
        checksum=chunk.checksum,
        delta_size_bytes=chunk.delta_size_bytes,
    )


def weight_chunk_from_pb(message: weights_pb2.WeightChunk) -> WeightChunk:
    """A piece of a tensor as a record. The receiver checks the checksum when it places the bytes."""
    return WeightChunk(message.name, message.offset, message.data, message.checksum, message.delta_size_bytes)
