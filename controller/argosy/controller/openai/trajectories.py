"""From sessions to samples: one row of tokens per session, as the trainer wants it.

All samples of a group share their prompt. Sessions of a group may begin differently (a date in the system prompt, other
tools), so the group's prompt is what all of them begin with, and the rest of each session's own prompt goes to the
front of its response, masked: the same tokens in the same order, of which the same ones are trained.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from argosy.controller.openai.sessions import Branch, Session
from argosy.types.ids import GroupId
from argosy.types.records import Abstained, Completion, FinishReason, Outcome, Prompt, VersionRun


def common_prefix(rows: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all rows begin with.

    >>> common_prefix([(1, 2, 3), (1, 2, 4), (1, 2)])
    2
    """
    first, last = min(rows), max(rows)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(map(len, (first, last))))


def group_prompt(prompt: Prompt, branches: Sequence[Branch], decode: Callable[[Sequence[int]], str]) -> Prompt:
    """The prompt that all these conversations begin with. `prompt` brings what is known of it otherwise."""
    shared = branches[0].prompt_ids[: common_prefix([branch.prompt_ids for branch in branches])]
    root = branches[0].turns[0].message_count - 1
    return replace(
        prompt,
        token_ids=tuple(shared),
        text=decode(shared),
        messages=tuple(branches[0].messages[:root]),
    )


def sample_of(session: Session, branch: Branch, prompt: Prompt, decode: Callable[[Sequence[int]], str]) -> Completion:
    """A rewarded session as a sample of its group."""
    own = branch.prompt_ids[len(prompt.token_ids) :]
    generated, shift = branch.generated, len(own)
    versions = list(generated.versions)
    if shift:
        versions[0] = VersionRun(versions[0].version, versions[0].token_count + shift)
    token_ids = (*own, *generated.token_ids)
    root = branch.turns[0].message_count - 1
    return Completion(
        sample_id=session.sample_id,
        token_ids=token_ids,
        log_probs=(*([0.0] * shift), *generated.log_probs),
        versions=tuple(versions),
        finish_reason=branch.turns[-1].finish_reason,
        text=decode(token_ids),
        response_mask=(*([0] * shift), *branch.mask),
        turn_count=len(branch.turns),
        turn_rewards=tuple(
            (shift + turn.stop - 1, reward)
            for turn, reward in zip(branch.turns, session.turn_rewards or [0.0] * len(branch.turns), strict=True)
            if reward
        ),
        messages=tuple(branch.messages[root:]),
        metrics={
            "session_calls": float(session.call_count),
            "session_branches": float(len(session.branches)),
        },
        outcome=session.outcome,
    )


def absent_sample(session: Session) -> tuple[Completion, Outcome]:
    """A session that ended without a reward, in a group that is trained all the same: no token of it."""
    outcome = Abstained(session.reason or "no reward came")
    return Completion(session.sample_id, (), (), (), FinishReason.ABORTED, outcome=outcome), outcome


def own_prompt(group: GroupId, index: int, data_source: str, ground_truth: object, extra: dict[str, object]) -> Prompt:
    """The prompt of a task that isn't of the data set; its tokens are known when its sessions are over."""
    return Prompt(group, (), data_source, ground_truth, extra, index=index)
