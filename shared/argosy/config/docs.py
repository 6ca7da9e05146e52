"""docs/configuration.md, generated from the configuration's classes and the key table."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from argosy.config.convert import field_types
from argosy.config.keys import HONOURED, REFUSED, WARNED, Refused, Warned
from argosy.config.lookup import show
from argosy.config.schema import Config, NamedRewardConfig, PoolConfig
from argosy.config.validate.rules import CHOICES, RANGES

_HEAD = Path(__file__).with_name("docs_head.md")
"""What stands before the tables: how values are written."""


def generate() -> str:
    """The whole document."""
    named = (*_section(PoolConfig, "argosy.pools.NAME."), *_section(NamedRewardConfig, "argosy.reward.services.NAME."))
    parts = [_HEAD.read_text(encoding="utf-8"), *_section(Config, ""), *named, _table_text()]
    return "\n".join(parts).rstrip() + "\n"


def _section(section: type[Any], prefix: str) -> Iterator[str]:
    """Headed tables of a section's own fields, then its subsections."""
    kinds, docs = field_types(section), field_docs(section)
    rows = []
    inner = []
    for item in dataclasses.fields(section):
        kind, path = kinds[item.name], f"{prefix}{item.name}"
        if dataclasses.is_dataclass(kind):
            inner.append((typing.cast("type[Any]", kind), path))
        else:
            rows.append(
                f"| `{path}` | {_type_name(kind)} | {_default(item)} | {_cell(docs[item.name])}{_accepts(path)} |"
            )
    if rows:
        title = prefix.rstrip(".")
        yield f"## `{title}`\n\n{_cell(inspect.getdoc(section) or '')}\n"
        yield "| key | type | default | meaning |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"
    for kind, path in inner:
        yield from _section(kind, f"{path}.")


@dataclasses.dataclass(frozen=True)
class KeyDoc:
    """One key as the tables show it."""

    path: str
    kind: str
    default: str
    """As one would type it; "" for an empty text."""
    meaning: str
    accepts: str
    """Its range or choices, in Markdown; "" for any."""


def key_doc(path: str) -> KeyDoc:
    """What the schema says about a full path. Raises KeyError for one that is no field.

    >>> key_doc("algorithm.lam").default
    '1.0'
    """
    section: type[Any] = Config
    *sections, name = path.split(".")
    for inner in sections:
        section = typing.cast("type[Any]", field_types(section)[inner])
    item = {item.name: item for item in dataclasses.fields(section)}[name]
    kind = _type_name(field_types(section)[name])
    return KeyDoc(path, kind, _default(item).strip("`"), _cell(field_docs(section)[name]), _accepts(path).strip())


def field_docs(section: type[Any]) -> dict[str, str]:
    """The text below each field, inherited ones too. Raises ValueError on a field without one."""
    docs: dict[str, str] = {}
    for base in section.__bases__:
        if dataclasses.is_dataclass(base):
            docs |= field_docs(base)
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = typing.cast("ast.ClassDef", tree.body[0]).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        text = following.value if isinstance(following, ast.Expr) else None
        if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
            raise ValueError(f"{section.__name__}.{statement.target.id} has no docstring below it")
        docs[statement.target.id] = " ".join(text.value.split())
    return docs


def _accepts(path: str) -> str:
    if path in CHOICES and len(CHOICES[path]) > 1:
        return f" *One of: {', '.join(f'`{choice}`' for choice in CHOICES[path])}.*"
    if path in RANGES and str(RANGES[path]) != "finite":
        return f" *{RANGES[path]}.*"
    return ""


def _type_name(kind: Any) -> str:
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if type(None) in options:
        (inner,) = [option for option in options if option is not type(None)]
        return f"{_type_name(inner)} or null"
    if origin is tuple:
        return (
            f"list of {_type_name(options[0])}"
            if options[-1] is Ellipsis
            else f"{len(options)} {_type_name(options[0])}s"
        )
    if origin is not None:
        return "mapping"
    return {str: "text", int: "whole number", float: "number", bool: "true/false"}[kind]


def _default(item: dataclasses.Field[Any]) -> str:
    if item.default is dataclasses.MISSING:
        return "`{}`"
    if isinstance(item.default, tuple):
        return f"`[{', '.join(show(value) for value in item.default)}]`"
    return f"`{show(item.default)}`" if item.default != "" else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _table_text() -> str:
    aliases = [
        f"| `{path}` | {', '.join(f'`{t}`' for t in row.targets)} |" for path, row in HONOURED.items() if row.targets
    ]
    parts = [
        f"## verl's keys: {len(HONOURED)} honoured, {len(REFUSED)} refused, {len(WARNED)} warned about\n",
        "`section.*` stands for all keys below it that have no row of their own. Honoured are those above, and:\n",
        "| verl's key | acts as |\n|---|---|",
        *aliases,
        "\n### Refused: the result would depend on them\n",
        "| key | reason | accepted all the same |\n|---|---|---|",
        *(_row(path, row) for path, row in REFUSED.items()),
        "\n### Warned about: nothing here for them to act on\n",
        "| key | reason | no warning for |\n|---|---|---|",
        *(_row(path, row) for path, row in WARNED.items()),
    ]
    return "\n".join(parts)


def _row(path: str, row: Refused | Warned) -> str:
    neutral = ", ".join(f"`{show(value)}`" for value in row.neutral)
    reason = row.reason
    if isinstance(row, Warned) and row.refused_values:
        reason += f" ({', '.join(f'`{value}`' for value in row.refused_values)}: refused)"
    return f"| `{path}` | {_cell(reason)} | {neutral} |"
