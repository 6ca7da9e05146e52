"""The controller's own gRPC server: ControllerService, health and reflection, and its entry in membership."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from argosy.config import Config
from argosy.controller import service
from argosy.controller.control import RunControl
from argosy.controller.files import write_atomically
from argosy.membership.interface import Membership
from argosy.rpc.clients.leading import leader_capabilities
from argosy.rpc.gate import Gate
from argosy.rpc.options import RpcOptions
from argosy.rpc.server import RpcServer
from argosy.telemetry.traces import Tracing
from argosy.types.records import Leader, Member, MemberState

MEMBER_ID = "controller-0"
ADDRESS_FILE = "endpoint.json"


@asynccontextmanager
async def serve_control(
    control: RunControl,
    membership: Membership,
    run_dir: Path,
    config: Config,
    tracing: Tracing,
    member_id: str = MEMBER_ID,
) -> AsyncIterator[str]:
    """Serve `control` where `argosy.controller` says while the block runs; yields the address.

    The address is in membership, with run and term, and in `endpoint.json` of the run folder for commands on this
    machine.
    """
    control.membership = membership
    gate = Gate(member_id)
    server = RpcServer.listen(
        config.argosy.controller.host,
        config.argosy.controller.port,
        gate=gate,
        options=RpcOptions(max_message_bytes=config.argosy.rpc.max_message_bytes),
        interceptors=tracing.server_interceptors(),
    )
    names = service.add_to_server(control, server.server, gate=gate)
    await server.serve(names)
    await server.start()
    await server.set_serving(True)
    incarnation = secrets.token_hex(8)
    reached_at = _as_others_see(server.address)
    member = Member(
        member_id, "controller", reached_at, incarnation,
        capabilities=leader_capabilities(Leader(control.view.run_id, control.view.term)), state=MemberState.READY,
    )  # fmt: skip
    registration = await membership.register(member)
    address = {"address": reached_at, "run_id": control.view.run_id, "incarnation": incarnation}
    write_atomically(run_dir / ADDRESS_FILE, json.dumps(address).encode())
    watching = asyncio.create_task(control.stalls.run(control.notify), name="watch for stalls")
    following = asyncio.create_task(control.follow_members(membership), name="follow members")
    try:
        yield reached_at
    finally:
        watching.cancel()
        following.cancel()
        _remove(run_dir / ADDRESS_FILE, incarnation)
        await registration.close()
        await server.stop(grace_s=1.0)


def _as_others_see(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{socket.gethostname()}:{port}" if host in ("0.0.0.0", "[::]", "::") else address


def _remove(path: Path, incarnation: str) -> None:
    """Take our own address away; another controller's, who has taken over, stays."""
    try:
        ours = json.loads(path.read_text())["incarnation"] == incarnation
    except (OSError, ValueError, KeyError):
        return
    if ours:
        path.unlink(missing_ok=True)
