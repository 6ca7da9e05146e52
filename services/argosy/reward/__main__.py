"""The reward service as a program: `python -m argosy.reward --config RUN/services.yaml --member reward-0`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.rpc.host import Service, main

if TYPE_CHECKING:
    import grpc

    from argosy.config import Config
    from argosy.reward.build import RewardCore
    from argosy.roles.reward import Reward
    from argosy.rpc.gate import Gate


def build(config: Config) -> RewardCore:
    """The core; imported here, after the thread counts are set and only when it is really to run."""
    from argosy.reward.build import build_core

    return build_core(config)


def add_to_server(core: Reward, server: grpc.aio.Server, gate: Gate, config: Config) -> list[str]:
    """Put the reward servicers on the gRPC server."""
    from argosy.reward.service import add_to_server as add

    return add(core, server, gate)


SERVICE = Service(
    role="reward",
    about="Scores completions: built-in verifiers, or your own function, in worker processes.",
    build=build,
    add_to_server=add_to_server,
)

if __name__ == "__main__":
    main(SERVICE)
