from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from argosy.api.reward.v1 import reward_service_pb2 as pb
from argosy.api.reward.v1.reward_service_pb2_grpc import (
    RewardServiceServicer,
    RewardServiceStub,
    add_RewardServiceServicer_to_server,
)
from argosy.rpc.channel import Caller
from argosy.rpc.errors import REASONS, from_reason, from_rpc_error, to_reason, to_status
from argosy.rpc.retry import NO_RETRY
from argosy.types import errors


class Raiser(RewardServiceServicer):
    """Raises what it is told to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def Score(self, request: pb.ScoreRequest, context: Any) -> pb.ScoreResponse:
        raise self.error

    async def GetCapabilities(self, request: pb.GetCapabilitiesRequest, context: Any) -> pb.GetCapabilitiesResponse:
        details = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="busy")
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", (("grpc-status-details-bin", details.SerializeToString()),)
        )
        raise AssertionError


async def raised(serve: Any, error: BaseException) -> errors.ArgosyError:
    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_RewardServiceServicer_to_server(Raiser(error), server)
        return []

    server = await serve(add)
    caller = Caller(server.address, what="reward-0", policy=NO_RETRY)
    stub = RewardServiceStub(caller.channel)
    try:
        with pytest.raises(errors.ArgosyError) as caught:
            await caller.unary(stub.Score, lambda left_s: pb.ScoreRequest(), deadline_s=20)  # type: ignore[arg-type]
        return caught.value
    finally:
        await caller.close()


@pytest.mark.parametrize("reason", sorted(REASONS))
async def test_every_error_survives_the_wire_with_its_data(serve: Any, reason: str) -> None:
    kind, _ = REASONS[reason]
    got = await raised(serve, kind("what was wrong", field="temperature", got="-1"))
    assert type(got) is kind
    assert got.metadata == {"field": "temperature", "got": "-1"}
    assert got.message.startswith("reward-0 at 127.0.0.1:")
    assert got.message.endswith("what was wrong")


def test_every_exception_has_a_reason() -> None:
    def below(kind: type[errors.ArgosyError]) -> list[type[errors.ArgosyError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in below(child))]

    mapped = {kind for kind, _ in REASONS.values()}
    declared = [kind for kind in below(errors.ArgosyError) if kind.__module__ == errors.__name__]
    assert {kind for kind in declared if kind is not errors.ArgosyError} == mapped


async def test_retry_info_travels(serve: Any) -> None:
    got = await raised(serve, errors.OverloadedError("full", retry_after_s=1.25))
    assert isinstance(got, errors.OverloadedError)
    assert got.retry_after_s == 1.25


async def test_an_unknown_exception_is_internal_with_type_and_text_and_is_logged(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    got = await raised(serve, ZeroDivisionError("by nought"))
    assert isinstance(got, errors.InternalError)
    assert "ZeroDivisionError: by nought" in got.message
    assert any(record.exc_info for record in caplog.records if "Score failed" in record.message)


async def test_long_messages_and_metadata_are_cut_and_still_understood(serve: Any) -> None:
    got = await raised(serve, errors.InvalidInputError("错" * 20_000, first="x" * 9000, second="y" * 9000))
    assert isinstance(got, errors.InvalidInputError)
    assert "错错错" in got.message
    assert got.metadata["first"].startswith("xxx")


async def test_a_foreign_server_without_our_details_is_understood_by_its_status(serve: Any) -> None:
    def add(server: grpc.aio.Server, gate: object) -> list[str]:
        add_RewardServiceServicer_to_server(Raiser(ValueError()), server)
        return []

    server = await serve(add)
    caller = Caller(server.address, policy=NO_RETRY)
    stub = RewardServiceStub(caller.channel)
    with pytest.raises(errors.OverloadedError, match="busy"):
        await caller.unary(stub.GetCapabilities, lambda left_s: pb.GetCapabilitiesRequest(), deadline_s=20)  # type: ignore[arg-type]
    unknown: Any = caller.channel.unary_unary("/argosy.api.reward.v1.RewardService/Nothing")
    with pytest.raises(errors.InternalError, match="UNIMPLEMENTED"):
        await caller.retry(lambda timeout_s, left_s: unknown(b"", timeout=timeout_s), deadline_s=20)
    await caller.close()


async def test_a_dead_address_is_unavailable() -> None:
    caller = Caller("127.0.0.1:1", what="reward-9", policy=NO_RETRY)
    stub = RewardServiceStub(caller.channel)
    with pytest.raises(errors.UnavailableError, match=r"reward-9 at 127\.0\.0\.1:1"):
        await caller.unary(stub.Score, lambda left_s: pb.ScoreRequest(), deadline_s=20)  # type: ignore[arg-type]
    await caller.close()


def test_status_carries_error_info_of_our_domain() -> None:
    status = to_status(errors.StepMismatchError("at 3", actual_step="3"))
    info = error_details_pb2.ErrorInfo()
    assert status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain, dict(info.metadata)) == ("STEP_MISMATCH", "argosy", {"actual_step": "3"})


def test_reasons_and_subclasses() -> None:
    class Special(errors.WeightsRefusedError):
        pass

    assert to_reason(Special("no")) == "WEIGHTS_REFUSED"
    assert isinstance(from_reason("FROM_THE_FUTURE", "?", {}), errors.InternalError)


def test_d6_peer_that_dies_while_a_stream_is_written_is_unavailable() -> None:
    """gRPC's client then says that its core had an internal error: a killed server must not look like a defect."""
    none = grpc.aio.Metadata()
    died = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, none, "Internal error from Core")
    assert type(from_rpc_error(died)) is errors.UnavailableError
    defect = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, none, none, "a defect")
    assert type(from_rpc_error(defect)) is errors.InternalError


def test_d6_a_call_that_nobody_here_cancelled_is_a_peer_that_goes_away() -> None:
    """What a server's end, or a reset connection, makes of a call in some moments: it ended a run that had others."""
    none = grpc.aio.Metadata()
    for details in (None, "", "CANCELLED"):
        cancelled = grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, none, none, details)
        assert isinstance(from_rpc_error(cancelled, peer="rollout-1"), errors.UnavailableError)
