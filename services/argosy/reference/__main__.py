"""The reference service as a program: `python -m argosy.reference --config RUN/services.yaml --member reference-0`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.rpc.host import Service, main

if TYPE_CHECKING:
    import grpc

    from argosy.config import Config
    from argosy.reference.core import ReferenceModel
    from argosy.roles.reference import Reference
    from argosy.rpc.gate import Gate


def build(config: Config) -> ReferenceModel:
    """The core; imported here, after the thread counts are set and only when it is really to run."""
    from argosy.reference.build import build_core

    return build_core(config)


def add_to_server(core: Reference, server: grpc.aio.Server, gate: Gate, config: Config) -> list[str]:
    """Put the reference servicers on the gRPC server."""
    from argosy.reference.service import add_to_server as add

    return add(core, server, gate)


SERVICE = Service(
    role="reference",
    about="Computes the log-probs of the frozen reference model.",
    build=build,
    add_to_server=add_to_server,
)

if __name__ == "__main__":
    main(SERVICE)
