"""The trainer service as a program: `python -m argosy.trainer --config RUN/services.yaml --member trainer-0`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.rpc.host import Service, main

if TYPE_CHECKING:
    import grpc

    from argosy.config import Config
    from argosy.roles.policy import TrainingCore
    from argosy.rpc.gate import Gate
    from argosy.trainer.core import Trainer


def build(config: Config) -> Trainer:
    """The core; imported here, after the thread counts are set and only when it is really to run."""
    from argosy.trainer.build import build_core

    return build_core(config)


def add_to_server(core: TrainingCore, server: grpc.aio.Server, gate: Gate, config: Config) -> list[str]:
    """Put the trainer servicers on the gRPC server."""
    from argosy.trainer.service import add_to_server as add

    return add(core, server, gate)


SERVICE = Service(
    role="trainer",
    about="Holds the policy: forward, backward, optimizer steps, checkpoints, and publishing its weights.",
    build=build,
    add_to_server=add_to_server,
)

if __name__ == "__main__":
    main(SERVICE)
