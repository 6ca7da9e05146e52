"""Simulated users: whoever answers a turn that calls no tool. Methods have verl's names.

    class Grader(Interaction):
        async def generate_response(self, instance_id, messages, **kwargs):
            right = messages[-1]["content"].strip() == kwargs["ground_truth"]
            return right, "Correct." if right else "Try again.", float(right), {}

    # interactions.yaml, for actor_rollout_ref.rollout.multi_turn.interaction_config_path
    interaction:
      - name: grader
        class_name: my_users.Grader
        config: {}

A row names its own with extra_info.interaction_kwargs.name; the other fields there are the `kwargs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from argosy.text.tokenizer import Message


class Interaction:
    """One object serves all samples at once: what belongs to one is kept under its `instance_id`."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = dict(config)

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> Any:
        """Before a sample's first turn."""

    async def generate_response(
        self, instance_id: str, messages: Sequence[Message], **kwargs: Any
    ) -> tuple[bool, str, float, Mapping[str, Any]]:
        """What the user says to the conversation so far.

        Returns:
            Whether it is over (the text isn't said then), the text, a reward for the last turn, and figures.
        """
        raise NotImplementedError(f"{type(self).__name__} has no generate_response()")

    async def finalize_interaction(self, instance_id: str, **kwargs: Any) -> None:
        """After a sample's end, however it ended."""
