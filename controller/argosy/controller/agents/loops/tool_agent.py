"""Turns with tools and simulated users, until the policy answers without a call, or a limit is reached.

the policy speaks ─┬─ calls ────────────► tool messages ─┐
      ▲            ├─ a malformed call ─► what was wrong ─┤
      │            └─ no call ─┬─ a user is there: what the user says ─┤
      │                        └─ the end                              │
      └────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from typing import Any, ClassVar

from argosy.controller.agents.episode import Episode, Turn
from argosy.controller.agents.interactions.user import User
from argosy.controller.agents.loops.base import AgentLoop
from argosy.controller.agents.setting import AgentSetting
from argosy.controller.agents.tools.calls import ToolCalls
from argosy.controller.agents.tools.kit import ToolKit


class ToolAgent(AgentLoop):
    """Limits are `multi_turn.max_assistant_turns`, `max_user_turns` (what tools and users say counts as theirs),
    `max_parallel_calls`, and the length of the whole response."""

    offers_tools: ClassVar[bool] = True

    def __init__(self, setting: AgentSetting, **options: Any) -> None:
        super().__init__(setting, **options)
        self._calls = ToolCalls(setting.tools, setting.multi_turn, setting.limits)

    async def run(self, episode: Episode) -> None:
        """See AgentLoop."""
        for name in ("tool_calls", "malformed_calls", "tool_failures"):
            episode.add(name, 0)  # so that a step's mean is over all samples
        most = self.setting.multi_turn.max_parallel_calls
        async with ToolKit(episode, self._calls, most) as kit, User(episode, self.setting) as user:
            while await self._reply(episode, await episode.generate(), kit, user):
                pass

    async def _reply(self, episode: Episode, turn: Turn, kit: ToolKit, user: User) -> bool:
        """Answer a turn; whether the policy may speak again."""
        if turn.cut:
            return False
        parsed = self.setting.parser.parse(turn.raw, episode.prompt.tools)
        if parsed.is_answer:
            message = await user.reply()
            return message is not None and self._may_go_on(episode) and await episode.say([message])
        if not parsed.calls and self.setting.limits.malformed_calls == "end":
            episode.add("malformed_calls", len(parsed.problems))
            return False
        if not self._may_go_on(episode):
            return False
        return await episode.say(await kit.answer(parsed))

    def _may_go_on(self, episode: Episode) -> bool:
        limits = self.setting.multi_turn
        own, others = limits.max_assistant_turns, limits.max_user_turns
        return (own is None or episode.turn_count < own) and (others is None or episode.reply_count < others)
