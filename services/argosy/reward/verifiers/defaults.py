"""`argosy.reward.scorer_kwargs`: options of verifiers for every row of a data source.

    argosy.reward.scorer_kwargs={openai/gsm8k: {method: strict}, all: {penalties: {repetition: {weight: 0.2}}}}

A row's own `extra_info.reward_kwargs` win, name by name; then its data source's, then those of `all`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from argosy.reward.verifiers import find_verifier
from argosy.reward.verifiers.base import Verifier
from argosy.reward.verifiers.penalties import TOKEN_COUNT, penalised
from argosy.types.errors import ConfigError
from argosy.types.records import Failed, Scored

ALL = "all"
_KEY = "argosy.reward.scorer_kwargs"
_NO_ANSWER = ""


def check_scorer_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Raises ConfigError for a data source without a verifier, an option that it hasn't, or a wrong value."""
    for source, given in kwargs.items():
        if not isinstance(given, Mapping):
            raise ConfigError(f"{_KEY}.{source}: wants a mapping of options, got {given!r}")
        verifier = None if source == ALL else find_verifier(source)
        if verifier is None and source != ALL:
            raise ConfigError(f"{_KEY}: no verifier for data source {source!r}; `argosy reward try --list` shows them")
        problem = _problem(verifier, given)
        if problem is not None:
            raise ConfigError(f"{_KEY}.{source}: {problem}")


def with_defaults(kwargs: Mapping[str, Any], data_source: str, extra_info: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row's `extra_info` with the options that it doesn't set itself.

    >>> with_defaults({"all": {"penalties": {}}, "gsm8k": {"method": "strict"}}, "gsm8k", {"index": 3})
    {'index': 3, 'reward_kwargs': {'penalties': {}, 'method': 'strict'}}
    """
    own = extra_info.get("reward_kwargs") or {}
    if not kwargs or not isinstance(own, Mapping):
        return extra_info  # what is no mapping is told by `scoring`
    return {**extra_info, "reward_kwargs": {**kwargs.get(ALL, {}), **kwargs.get(data_source, {}), **own}}


def _problem(verifier: Verifier | None, given: Mapping[str, Any]) -> str | None:
    known = (*(verifier.options if verifier else ()), "penalties")
    unknown = [name for name in given if name not in known]
    if unknown:
        return f"there is no option {unknown[0]!r}; there are: {', '.join(known)}"
    own = {name: value for name, value in given.items() if name != "penalties"}
    outcome = penalised(Scored(0.0), _NO_ANSWER, given.get("penalties", {}), token_count=0)
    if verifier is not None and own and not isinstance(outcome, Failed):
        outcome = verifier.verify(_NO_ANSWER, "1", {"reward_kwargs": own, TOKEN_COUNT: 0})
    return outcome.message if isinstance(outcome, Failed) else None
