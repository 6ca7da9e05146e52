"""ControllerService: runs and members."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from argosy.api.controller.v1 import controller_service_pb2 as pb
from argosy.rpc.codec.common import optional_version_from_pb, version_to_pb
from argosy.types.errors import InternalError
from argosy.types.records import Member, MemberState, RunStatus, ScaleChange, ServerCount

_RUN_STATES = {
    "starting": pb.RUN_STATE_STARTING,
    "running": pb.RUN_STATE_RUNNING,
    "paused": pb.RUN_STATE_PAUSED,
    "stopping": pb.RUN_STATE_STOPPING,
    "finished": pb.RUN_STATE_FINISHED,
    "failed": pb.RUN_STATE_FAILED,
}
_RUN_STATES_BACK = {code: state for state, code in _RUN_STATES.items()}

_MEMBER_STATES = {
    MemberState.JOINING: pb.MEMBER_STATE_JOINING,
    MemberState.STALE: pb.MEMBER_STATE_STALE,
    MemberState.READY: pb.MEMBER_STATE_READY,
    MemberState.DRAINING: pb.MEMBER_STATE_DRAINING,
    MemberState.QUARANTINED: pb.MEMBER_STATE_QUARANTINED,
}
_MEMBER_STATES_BACK = {code: state for state, code in _MEMBER_STATES.items()}


def run_to_pb(run: RunStatus) -> pb.Run:
    """A run as a message."""
    return pb.Run(
        run_id=run.run_id,
        state=_RUN_STATES[run.state],
        step=run.step,
        total_step_count=run.total_steps,
        term=run.term,
        version=None if run.version is None else version_to_pb(run.version),
        stage=run.stage,
        metrics=run.metrics,
        message=run.message,
        stage_start_time=_time(run.stage_since),
        stall=run.stall,
    )


def run_from_pb(message: pb.Run) -> RunStatus:
    """A run as a record. InternalError if its state is unknown here."""
    if message.state not in _RUN_STATES_BACK:
        raise InternalError(f"run {message.run_id!r} is in state {message.state}, unknown here")
    return RunStatus(
        run_id=message.run_id,
        state=_RUN_STATES_BACK[message.state],
        step=message.step,
        total_steps=message.total_step_count,
        term=message.term,
        version=optional_version_from_pb(message),
        stage=message.stage,
        metrics=dict(message.metrics),
        message=message.message,
        stage_since=_seconds(message.stage_start_time),
        stall=message.stall,
    )


def member_to_pb(member: Member) -> pb.Member:
    """A member as a message."""
    return pb.Member(
        member_id=member.member_id,
        role=member.role,
        address=member.address,
        incarnation=member.incarnation,
        pool=member.pool,
        engine=member.engine,
        capabilities=member.capabilities,
        state=_MEMBER_STATES[member.state],
        version=None if member.version is None else version_to_pb(member.version),
        sample_count=member.sample_count,
        idle_time=_duration(member.idle_s) if member.sample_count else None,
        last_error=member.error,
        last_error_time=_time(member.error_at),
    )


def member_from_pb(message: pb.Member) -> Member:
    """A member as a record. InternalError if its state is unknown here."""
    if message.state not in _MEMBER_STATES_BACK:
        raise InternalError(f"member {message.member_id!r} is in state {message.state}, unknown here")
    return Member(
        member_id=message.member_id,
        role=message.role,
        address=message.address,
        incarnation=message.incarnation,
        pool=message.pool or "default",
        engine=message.engine,
        capabilities=dict(message.capabilities),
        state=_MEMBER_STATES_BACK[message.state],
        version=optional_version_from_pb(message),
        sample_count=message.sample_count,
        idle_s=message.idle_time.ToMilliseconds() / 1000,
        error=message.last_error,
        error_at=_seconds(message.last_error_time),
    )


def _time(seconds: float) -> Timestamp | None:
    """Since 1970; None for 0."""
    if not seconds:
        return None
    found = Timestamp()
    found.FromMilliseconds(round(seconds * 1000))
    return found


def _duration(seconds: float) -> Duration:
    found = Duration()
    found.FromMilliseconds(round(seconds * 1000))
    return found


def _seconds(time: Timestamp) -> float:
    """Since 1970; 0 of one that is unset."""
    return float(time.ToMilliseconds() / 1000)


def server_count_to_pb(wanted: ServerCount) -> pb.ServerCount:
    """A number of servers as a message."""
    return pb.ServerCount(role=wanted.role, pool=wanted.pool, server_count=wanted.count)


def server_count_from_pb(message: pb.ServerCount) -> ServerCount:
    """A number of servers as a record."""
    return ServerCount(message.role, message.server_count, message.pool)


def scale_change_to_pb(change: ScaleChange) -> pb.ScaleChange:
    """What was begun as a message."""
    return pb.ScaleChange(
        role=change.role,
        pool=change.pool,
        server_count_before=change.before,
        server_count=change.count,
        started=change.started,
        draining=change.draining,
    )


def scale_change_from_pb(message: pb.ScaleChange) -> ScaleChange:
    """What was begun as a record."""
    return ScaleChange(
        message.role,
        message.pool,
        message.server_count_before,
        message.server_count,
        tuple(message.started),
        tuple(message.draining),
    )
