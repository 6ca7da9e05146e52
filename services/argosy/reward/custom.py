"""The user's own reward functions: finding, checking and calling them.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs):
        return {"score": 1.0, "acc": True}

verl's signature and calling convention, that of its batch reward manager, or a function marked by `argosy.reward.sdk`.
Whatever goes wrong is an outcome with the function's name, never a 0 (cases G1, G2, G11): `returns`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from argosy.reward.calling import Sample, plan_call
from argosy.reward.returns import outcome_of, outcomes_of
from argosy.types.errors import ConfigError
from argosy.types.records import Failed, Outcome

__all__ = ["CustomFunction", "LoadedFunction", "outcome_of"]

_SHOWN_LINES = 6
_SHOWN_CHARACTERS = 2000
_MODULE = "argosy_custom_reward"


@dataclass(frozen=True, slots=True)
class CustomFunction:
    """Where the function is, and what it is given besides the sample."""

    path: str
    name: str = "compute_score"
    reward_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON values."""
    batch: bool = False
    """It takes lists, as verl's batch manager calls it, also where its signature doesn't say so (`**kwargs`)."""

    @property
    def label(self) -> str:
        """For messages: "compute_score of /path/to/reward.py"."""
        return f"{self.name} of {self.path}"


class LoadedFunction:
    """A function that was found, imported and checked. It is called by one thread at a time."""

    def __init__(self, spec: CustomFunction) -> None:
        """Import it. Raises ConfigError: no file, an error while importing, no such function, a wrong signature."""
        self._spec = spec
        self._function = _find(spec)
        self.plan = plan_call(self._function, spec.reward_kwargs, spec.label, batch=spec.batch)
        called = getattr(self._function, "__call__", None)  # noqa: B004 -- an object may be async in its __call__ only
        self._is_async = inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(called)
        # One loop for all calls, so that an async function may keep its HTTP session.
        self._loop = asyncio.new_event_loop() if self._is_async else None

    def score(self, sample: Sample) -> Outcome:
        """Call it for one sample; whatever goes wrong is Failed, with the function's name and the traceback's end."""
        if self.plan.spec.batch:
            return self.score_batch([sample])[0]
        value = self._call(self.plan.for_one(sample))
        if isinstance(value, Failed):
            return value
        return outcome_of(value, self._spec.label, len(sample["response_ids"]) if self.plan.wants_ids else None)

    def score_batch(self, samples: Sequence[Sample]) -> list[Outcome]:
        """Call a batch function once: an outcome for each sample, in order. What goes wrong is so for all of them."""
        if not self.plan.spec.batch:
            return [self.score(sample) for sample in samples]
        value = self._call(self.plan.for_batch(samples))
        if isinstance(value, Failed):
            return [value] * len(samples)
        counts = [len(sample["response_ids"]) for sample in samples] if self.plan.wants_ids else None
        return outcomes_of(value, self._spec.label, len(samples), counts)

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        try:
            value = self._function(**arguments)
            if self._loop is not None:
                value = self._loop.run_until_complete(value)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 -- reported as the sample's outcome
            return Failed("exception", f"{self._spec.label} raised {_last_lines(error)}")
        return value


def _find(spec: CustomFunction) -> Callable[..., Any]:
    path = Path(spec.path).expanduser()
    if not path.is_file():
        raise ConfigError(f"custom_reward_function.path: there is no file {path} (looked from {Path.cwd()})")
    function = getattr(_import(path), spec.name, None)
    if function is None:
        raise ConfigError(f"custom_reward_function.name: {path} defines no {spec.name!r}")
    if not callable(function):
        raise ConfigError(f"custom_reward_function.name: {spec.name!r} of {path} is a {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"custom_reward_function.path: {path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and pickle look a module up by its name
    sys.path.insert(0, str(path.parent.resolve()))  # so that it can import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"custom_reward_function.path: importing {path} raised {_last_lines(error)}") from error
    return module


def _last_lines(error: BaseException) -> str:
    summary = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__)).strip().splitlines()[-_SHOWN_LINES:]
    return f"{summary[:_SHOWN_CHARACTERS]}\n" + "\n".join(frames)[-_SHOWN_CHARACTERS:]
