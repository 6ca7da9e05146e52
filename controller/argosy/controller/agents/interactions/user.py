"""The simulated user of one sample, if its row has one."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from argosy.controller.agents.episode import Episode
from argosy.controller.agents.setting import AgentSetting
from argosy.types.errors import InvalidInputError


class User:
    """An async context manager around a sample's conversation.

    A row names its user with extra_info.interaction_kwargs.name; where there is only one in the file, the name may be
    left out. A row without interaction_kwargs has none.
    """

    def __init__(self, episode: Episode, setting: AgentSetting) -> None:
        self._episode = episode
        self._users = setting.interactions
        given = episode.prompt.extra_info.get("interaction_kwargs")
        self._kwargs: dict[str, Any] | None = dict(given) if isinstance(given, Mapping) and self._users else None
        self._id = episode.request.key

    async def __aenter__(self) -> User:
        if self._kwargs is not None:
            name = self._kwargs.pop("name", None) or (next(iter(self._users)) if len(self._users) == 1 else "")
            if name not in self._users:
                known = ", ".join(self._users)
                raise InvalidInputError(f"extra_info.interaction_kwargs.name: got {name!r}; there are {known}")
            self._user = self._users[name]
            own = await self._user.start_interaction(self._id, **self._kwargs)
            self._id = own if isinstance(own, str) and own else self._id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kwargs is not None:
            await self._user.finalize_interaction(self._id)

    async def reply(self) -> dict[str, Any] | None:
        """What the user says to the last turn, whose reward and figures are entered; None: the conversation is over."""
        if self._kwargs is None:
            return None
        over, text, reward, figures = await self._user.generate_response(
            self._id, self._episode.conversation, **self._kwargs
        )
        self._episode.reward(float(reward or 0.0))
        for name, value in (figures or {}).items():
            if isinstance(value, int | float):
                self._episode.add(name, value)
        return None if over else {"role": "user", "content": str(text)}
