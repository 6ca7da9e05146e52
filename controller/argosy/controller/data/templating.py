"""What of a row the chat template is given: its messages and the tools on offer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from argosy.controller.data.rows import DataRow
from argosy.types.errors import InvalidInputError

if TYPE_CHECKING:
    from argosy.controller.agents.plan import AgentPlan
    from argosy.text import TextTokenizer


@dataclass(frozen=True, slots=True)
class Templated:
    """A row as it is templated."""

    messages: tuple[dict[str, Any], ...]
    template_tools: tuple[Mapping[str, Any], ...] = ()
    """What the chat template is given."""
    tools: tuple[Mapping[str, Any], ...] = ()
    """What the model may call."""
    agent_name: str = ""
    """Who leads the conversation; empty: nobody, it is one answer."""

    def render(self, tokenizer: TextTokenizer, template_kwargs: Mapping[str, Any]) -> str:
        """As the chat template writes it. Raises InvalidInputError."""
        return tokenizer.render(self.messages, self.template_tools or None, **template_kwargs)


def templated(row: DataRow, agents: AgentPlan | None, where: str) -> Templated:
    """Raises InvalidInputError, with `where`, if the row wants an agent or a tool that isn't there."""
    if agents is not None:
        return agents.row(row, where)
    if row.agent_name not in ("", "single_turn_agent"):
        raise InvalidInputError(
            f"{where}: agent_name is {row.agent_name!r}, and no agents are configured: set "
            "actor_rollout_ref.rollout.multi_turn.enable=true"
        )
    return Templated(row.messages, row.tools, row.tools)
