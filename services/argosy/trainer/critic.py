"""The critic service as a program: `python -m argosy.trainer.critic --config RUN/services.yaml --member critic-0`.

The same trainer with a value head: the policy's service serves the same calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from argosy.rpc.host import Service, main
from argosy.trainer.__main__ import add_to_server

if TYPE_CHECKING:
    from argosy.config import Config
    from argosy.trainer.core import Trainer


def build(config: Config) -> Trainer:
    """The core; imported here, after the thread counts are set and only when it is really to run."""
    from argosy.trainer.build import build_critic

    return build_critic(config)


SERVICE = Service(
    role="critic",
    about="Holds the critic: token-level values, the value loss, optimizer steps and checkpoints.",
    build=build,
    add_to_server=add_to_server,
    module="argosy.trainer.critic",
)

if __name__ == "__main__":
    main(SERVICE)
