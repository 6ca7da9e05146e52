"""How often a dead child is started again: a few times in any hour, each time after a longer wait."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from argosy.controller.launch.errors import ChildDiedError


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What a supervisor does about children that die by themselves."""

    limit: int
    """Restarts of one child within `window_s`; 0: a death is final."""
    window_s: float = 3600.0
    first_wait_s: float = 0.5
    """Before the second restart in a window; the first one comes at once. Doubles with each further one."""
    longest_wait_s: float = 30.0

    def wait_s(self, deaths: int) -> float:
        """Seconds from a death to the restart, when it is the child's so manyth in the window.

        >>> [RestartPolicy(5).wait_s(deaths) for deaths in (1, 2, 3, 4)]
        [0.0, 0.5, 1.0, 2.0]
        """
        return 0.0 if deaths < 2 else min(self.longest_wait_s, self.first_wait_s * 2.0 ** (deaths - 2))


class RestartBook:
    """Who died when.

    Args:
        policy: What is allowed.
        clock: Seconds, never going back.
    """

    def __init__(self, policy: RestartPolicy, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy = policy
        self._clock = clock
        self._deaths: dict[str, deque[tuple[float, ChildDiedError]]] = defaultdict(deque)

    def wait_s(self, error: ChildDiedError) -> float | None:
        """Enter a death: seconds until the child may be started again; None: it has died too often."""
        now, deaths = self._clock(), self._deaths[error.member_id]
        while deaths and deaths[0][0] < now - self._policy.window_s:
            deaths.popleft()
        deaths.append((now, error))
        if len(deaths) > self._policy.limit:
            return None
        return self._policy.wait_s(len(deaths))

    def first_cause(self, error: ChildDiedError) -> ChildDiedError:
        """What a person needs to see of a child that died again and again: how it did first."""
        deaths = self._deaths[error.member_id]
        if len(deaths) < 2:
            return error
        return deaths[0][1].after(len(deaths) - 1, error)
