"""Rows in verl's schema, checked: the wrong file, column and row are named, and no row is ever skipped."""

from __future__ import annotations

import datetime
import decimal
import difflib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from argosy.controller.data.tables import RowTable, read_table
from argosy.text.chat import message_problem
from argosy.types.errors import InvalidInputError

REWARD_MODEL = "reward_model"
EXTRA_INFO = "extra_info"
TOOLS = "tools"
AGENT_NAME = "agent_name"


@dataclass(frozen=True, slots=True)
class DataRow:
    """One row of a dataset, before templating.

    >>> DataRow(({"role": "user", "content": "2+2?"},), "gsm8k", "4").ground_truth
    '4'
    """

    messages: tuple[dict[str, Any], ...]
    """The conversation that the prompt is made of."""
    data_source: str
    """Names the scorer, and the validation metrics' group."""
    ground_truth: Any
    """`reward_model.ground_truth`; None where the row says null (a custom reward that needs none)."""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the row's own `tools` column, if there is one."""
    agent_name: str = ""
    """Of the row's `agent_name` column, if there is one: which agent loop answers it."""


class Dataset:
    """The rows of one or many files, in file order, decoded when asked for.

    Columns: `prompt_key` (list of {role, content}), `reward_fn_key` (the data source), reward_model {style,
    ground_truth}, and optionally extra_info, tools and agent_name. An object or a list may also be stored as JSON text.
    Other columns are ignored.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        prompt_key: str = "prompt",
        reward_fn_key: str = "data_source",
        name: str = "data",
    ) -> None:
        """Open the files and check their columns; rows are checked when decoded.

        Args:
            paths: Existing files.
            prompt_key: Column of the conversation.
            reward_fn_key: Column of the data source.
            name: What to call the set in messages: the key that names its files.

        Raises:
            InvalidInputError: A file that can't be read, lacks a column, or all files together have no row.
        """
        self.name = name
        self._prompt_key = prompt_key
        self._reward_fn_key = reward_fn_key
        wanted = list(dict.fromkeys([prompt_key, reward_fn_key, REWARD_MODEL, EXTRA_INFO, TOOLS, AGENT_NAME]))
        self._tables = [read_table(path, wanted, (prompt_key, TOOLS)) for path in paths]
        self._ends = list(accumulate(len(table) for table in self._tables))
        if len(self) == 0:
            raise InvalidInputError(f"{name}: {_and(paths)} has 0 rows")
        for table in self._tables:
            self._check_columns(table)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> DataRow:
        return next(self.rows(index, index + 1))

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[DataRow]:
        """Rows start … stop-1. Raises InvalidInputError that names file, column and row."""
        stop = len(self) if stop is None else min(stop, len(self))
        while start < stop:
            which = bisect_right(self._ends, start)
            table = self._tables[which]
            first = self._ends[which] - len(table)
            until = min(stop, self._ends[which])
            for number, row in enumerate(table.rows(start - first, until - first), start - first):
                yield self._decode(row, f"{table.path}, row {number} (from 0)")
            start = until

    def _check_columns(self, table: RowTable) -> None:
        if len(table) == 0:
            return
        for column, key in (
            (self._prompt_key, "data.prompt_key"),
            (self._reward_fn_key, "data.reward_fn_key"),
            (REWARD_MODEL, None),
        ):
            if column not in table.columns:
                close = difflib.get_close_matches(column, table.columns, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                how = f" (another name is set by {key})" if key else " (an object with style and ground_truth)"
                raise InvalidInputError(
                    f"{table.path} has no column {column!r}{how}; its columns are {', '.join(table.columns)}{hint}"
                )

    def _decode(self, row: Mapping[str, Any], where: str) -> DataRow:
        messages = _structure(row.get(self._prompt_key))
        problem = message_problem(messages)
        if problem is not None:
            raise InvalidInputError(f"{where}: column {self._prompt_key!r} {problem}")
        source = row.get(self._reward_fn_key)
        if not isinstance(source, str) or not source:
            raise InvalidInputError(f"{where}: column {self._reward_fn_key!r} must be a name, got {source!r}")
        reward = _structure(row.get(REWARD_MODEL))
        if not isinstance(reward, Mapping) or "ground_truth" not in reward:
            raise InvalidInputError(
                f"{where}: column {REWARD_MODEL!r} must be an object with ground_truth, got {_short(reward)}"
            )
        extra = _structure(row.get(EXTRA_INFO))
        if extra is not None and not isinstance(extra, Mapping):
            raise InvalidInputError(f"{where}: column {EXTRA_INFO!r} must be an object, got {_short(extra)}")
        return DataRow(
            messages=tuple(_message(message) for message in messages),
            data_source=source,
            ground_truth=_plain(reward["ground_truth"], f"{where}: column {REWARD_MODEL!r}"),
            extra_info=_plain(dict(extra or {}), f"{where}: column {EXTRA_INFO!r}"),
            tools=_tools(_structure(row.get(TOOLS)), where),
            agent_name=_agent_name(row.get(AGENT_NAME), where),
        )


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Without null fields, content apart: templates ask whether `tool_calls` is there, and null means that it isn't."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _tools(value: object, where: str) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(_structure(tool), Mapping) for tool in value):
        raise InvalidInputError(f"{where}: column {TOOLS!r} must be a list of JSON schemas, got {_short(value)}")
    return tuple(dict(_structure(tool)) for tool in value)


def _agent_name(value: object, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise InvalidInputError(f"{where}: column {AGENT_NAME!r} must be a name, got {_short(value)}")
    return value or ""


def _structure(value: Any) -> Any:
    """A list or object that was stored as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value  # plain text that starts with a bracket; the caller's check says what was expected
    return value


def _plain(value: Any, where: str) -> Any:
    """JSON values only, since rewards may be scored in another language; dates become ISO text, decimals floats."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item, where) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return float(value)
    raise InvalidInputError(f"{where} holds a {type(value).__name__}, which JSON can't carry; store it as text")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


def _and(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
