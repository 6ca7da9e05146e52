"""Write a reward as a function; Argosy finds out by its parameters what it wants to know of a sample.

    from argosy.reward.sdk import reward

    @reward
    def right(solution, ground_truth):
        return solution.strip() == ground_truth

    @reward(batch=True, data_sources=("essays",), version="2")
    async def judge(solution, messages, extra_info):       # lists, one entry for each sample
        return [{"score": ..., "style": ...} for _ in solution]

The function itself is not changed: call it in your tests as it is. It is served by `argosy serve reward --function
file.py:right`, or in a run by `custom_reward_function.path=file.py custom_reward_function.name=right`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar, overload

Function = TypeVar("Function", bound=Callable[..., Any])

MARK = "__argosy_reward__"
"""Attribute of a marked function: its RewardSpec."""

PARAMETERS: Mapping[str, str] = MappingProxyType(
    {
        "solution": "response_text",
        "solution_str": "response_text",
        "response": "response_text",
        "response_text": "response_text",
        "ground_truth": "ground_truth",
        "extra_info": "extra_info",
        "data_source": "data_source",
        "prompt_text": "prompt_text",
        "messages": "messages",
        "prompt_ids": "prompt_ids",
        "response_ids": "response_ids",
        "truncated": "truncated",
    }
)
"""Parameter → what of the sample it gets: texts, any JSON value (`ground_truth`; None if the row has none), an object
(`extra_info`), a list of chat messages, lists of token ids, and whether the length limit cut the response."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """What a marked function says about itself."""

    batch: bool = False
    data_sources: tuple[str, ...] = ("*",)
    max_batch_size: int = 256
    repeat_forbidden: bool = False
    name: str = ""
    version: str = ""


@overload
def reward(function: Function, /) -> Function: ...


@overload
def reward(
    *,
    batch: bool = False,
    data_sources: tuple[str, ...] = ("*",),
    max_batch_size: int = 256,
    repeat_forbidden: bool = False,
    name: str = "",
    version: str = "",
) -> Callable[[Function], Function]: ...


def reward(function: Any = None, /, **options: Any) -> Any:
    """Mark a function, plain or `async def`, as a reward.

    Its parameters are of PARAMETERS; others need a default, or come from `custom_reward_function.reward_kwargs`. It
    returns for a sample a finite number, a dict with "score" (the other keys become parts; "token_scores" a number for
    each response id, if it takes response_ids), or None to abstain. Raising is the outcome *failed*.

    `batch`: it gets lists, and returns a list with one such entry for each sample, in order. `data_sources`: what it
    judges; others are *failed*, "unknown_data_source"; "math/*" is any name that begins so. `max_batch_size`: samples
    in one call at most. `repeat_forbidden`: a sample must not be sent again after a failure. Raises TypeError for
    anything that can't work.
    """
    if function is None:
        spec = RewardSpec(**options)
        if spec.max_batch_size < 1 or isinstance(spec.data_sources, str) or not spec.data_sources:
            raise TypeError(
                f"@reward: max_batch_size must be positive and data_sources a tuple of names, got "
                f"{spec.max_batch_size} and {spec.data_sources!r}"
            )
        return lambda marked: _mark(marked, spec)
    return _mark(function, RewardSpec(**options))


def _mark(function: Function, spec: RewardSpec) -> Function:
    name = getattr(function, "__name__", repr(function))
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(f"@reward {name}: {parameter} can't be given by name; the sample's fields are")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"@reward {name}: a generator gives no score; return it")
    setattr(function, MARK, spec)
    return function
