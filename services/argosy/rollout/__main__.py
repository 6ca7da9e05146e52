"""The rollout service as a program: `python -m argosy.rollout --config RUN/services.yaml --member rollout-0`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.rpc.host import Service, main

if TYPE_CHECKING:
    import grpc

    from argosy.config import Config
    from argosy.rollout.core import RolloutCore
    from argosy.rpc.gate import Gate
    from argosy.rpc.generate_session import ServedRollout


def build(config: Config) -> RolloutCore:
    """The core; imported here, after the thread counts are set and only when it is really to run."""
    from argosy.rollout.build import build_core

    return build_core(config, start_stale=not (config.argosy.rollout.start_ready or config.argosy.rollout_only))


def add_to_server(core: ServedRollout, server: grpc.aio.Server, gate: Gate, config: Config) -> list[str]:
    """Put the rollout servicers on the gRPC server."""
    from argosy.rollout.service import add_to_server as add
    from argosy.rpc.options import RpcOptions

    return add(core, server, gate, options=RpcOptions(max_message_bytes=config.argosy.rpc.max_message_bytes))


SERVICE = Service(
    role="rollout",
    about="Generates completions with exact log-probs, and takes new weights in between.",
    build=build,
    add_to_server=add_to_server,
)

if __name__ == "__main__":
    main(SERVICE)
