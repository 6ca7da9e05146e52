"""The user's own reward function: `custom_reward_function.path`, `.name`, `.reward_kwargs`, with verl's signature.

    def compute_score(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs): ...

plain or `async`. It returns a number, or a dict with "score" whose other keys become parts of the result, or None to
abstain. What it must not return is refused with its name: never turned into a 0, never spread over other samples (cases
G1, G2, G11).
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import math
import numbers
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from argosy.types.errors import ConfigError
from argosy.types.records import Abstained, Failed, Outcome, Scored

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
        _check_signature(spec, self._function)
        called = getattr(self._function, "__call__", None)  # noqa: B004 -- an object may be async in its __call__ only
        self._is_async = inspect.iscoroutinefunction(self._function) or inspect.iscoroutinefunction(called)
        # One loop for all calls, so that an async function may keep its HTTP session.
        self._loop = asyncio.new_event_loop() if self._is_async else None

    def score(self, data_source: str, solution: str, ground_truth: Any, extra_info: Mapping[str, Any]) -> Outcome:
        """Call it once; whatever goes wrong is Failed, with the function's name and the traceback's last lines."""
        try:
            value = self._function(
                data_source=data_source,
                solution_str=solution,
                ground_truth=ground_truth,
                extra_info=dict(extra_info),
                **self._spec.reward_kwargs,
            )
            if self._loop is not None:
                value = self._loop.run_until_complete(value)
        except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001 -- reported as the sample's outcome
            return Failed("exception", f"{self._spec.label} raised {_last_lines(error)}")
        return outcome_of(value, self._spec.label)


def outcome_of(value: Any, label: str) -> Outcome:
    """What a function's return value means; anything but a finite number, a dict with one or None is refused.

    >>> outcome_of({"score": 1, "acc": True}, "f")
    Scored(score=1.0, parts={'acc': True}, token_scores=())
    >>> outcome_of([1.0], "f").message
    'f returned a list of 1; it must return one number (or a dict with "score") for one sample'
    """
    if value is None:
        return Abstained(f"{label} returned None")
    if not isinstance(value, Mapping):
        score = _number(value)
        return _scored(score, {}, label) if score is not None else _refused(value, label)
    if "score" not in value:
        keys = ", ".join(repr(key) for key in list(value)[:10]) or "none"
        return Failed("bad_return", f'{label} returned a dict without "score" (its keys: {keys})')
    if value["score"] is None:
        return Abstained(f'{label} returned "score": None')
    score = _number(value["score"])
    if score is None:
        return _refused(value["score"], f'{label}, as "score",')
    return _scored(score, {str(key): _part(item) for key, item in value.items() if key != "score"}, label)


def _scored(score: float, parts: dict[str, float | str | bool], label: str) -> Outcome:
    if not math.isfinite(score):
        return Failed("bad_return", f"{label} returned {score}; a score must be finite")
    return Scored(score, parts)


def _refused(value: Any, label: str) -> Failed:
    if inspect.iscoroutine(value):
        value.close()  # so that Python doesn't warn about it as well
        return Failed("bad_return", f"{label} returned a coroutine that was never awaited; declare it `async def`")
    what = type(value).__name__
    if isinstance(value, str | bytes):
        what = f"the {what} {value[:50]!r}"
    elif hasattr(value, "shape"):
        what = f"a {what} of shape {tuple(value.shape)}"
    elif hasattr(value, "__len__"):
        what = f"a {what} of {len(value)}"
    else:
        what = f"a {what}"
    wanted = 'it must return one number (or a dict with "score") for one sample'
    return Failed("bad_return", f"{label} returned {what}; {wanted}")


def _number(value: Any) -> float | None:
    """A Python or numpy number, a bool or a 0-d array or tensor as float; None for anything else."""
    if isinstance(value, str | bytes | list | tuple):
        return None
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    if not isinstance(value, numbers.Real) and type(value).__name__ != "Decimal":
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _part(value: Any) -> float | str | bool:
    """Scalars as they are; anything else, and what is not finite, as text: extras never break a batch (case G2)."""
    if isinstance(value, bool | str):
        return value[:_SHOWN_CHARACTERS] if isinstance(value, str) else value
    number = _number(value)
    if number is not None and math.isfinite(number):
        return number
    try:
        return json.dumps(value, default=repr)[:_SHOWN_CHARACTERS]
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:_SHOWN_CHARACTERS]


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


def _check_signature(spec: CustomFunction, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a compiled function that doesn't tell
    given = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}}
    clash = sorted(given.keys() & spec.reward_kwargs.keys())
    if clash:
        raise ConfigError(f"custom_reward_function.reward_kwargs: {', '.join(clash)} is given by Argosy; drop it")
    try:
        signature.bind(**given, **spec.reward_kwargs)
    except TypeError as error:
        wanted = ", ".join([*given, *spec.reward_kwargs])
        raise ConfigError(
            f"custom_reward_function: {spec.label} can't be called: {error}. It has the signature "
            f"{spec.name}{signature} and must accept the keyword arguments {wanted}"
        ) from error


def _last_lines(error: BaseException) -> str:
    summary = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__)).strip().splitlines()[-_SHOWN_LINES:]
    return f"{summary[:_SHOWN_CHARACTERS]}\n" + "\n".join(frames)[-_SHOWN_CHARACTERS:]
