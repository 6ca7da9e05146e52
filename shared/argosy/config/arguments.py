"""The `key=value` arguments of a command line, in hydra-core's override grammar.

Values stay what was typed. Three additions to Hydra, each where Hydra would fail or change the value:

- a key whose value is one text takes characters that Hydra's grammar lacks (`=`, `#`, `~`, `!`, `(` …) as they are;
- such a key takes `1e-6`, `007` or `true` as that text, not as a number turned back into another text;
- an unquoted `None` is refused: it would be the text "None", and `null` was meant.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from argosy.config.lookup import Leaf, find_leaf, targets_of
from argosy.types.errors import ConfigError

if TYPE_CHECKING:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import Override


@dataclass(frozen=True)
class Argument:
    """One override, parsed."""

    text: str
    """As typed."""
    key: str
    """The full path."""
    deletes: bool
    """`~key`: back to the default."""
    value: Any = None
    value_text: str = ""
    """The value in Hydra's grammar, ready to be given to Hydra."""


def parse_argument(text: str) -> Argument:
    """Parse one argument. Raises ConfigError that says how to write it; never Hydra's own message alone."""
    _check_shape(text)
    head, equals, value_text = text.partition("=")
    key = head.lstrip("+~")
    targets = targets_of(key)
    leaf = find_leaf(targets[0]) if targets else None
    override = _parse(text, head, value_text, leaf) if equals else _parse_bare(text)
    if override.is_sweep_override():
        raise ConfigError(
            f"{key}: got several values, {value_text!r}. For a list write {key}=[{value_text}]; for one text "
            f"""with commas, quote it: '{key}="{value_text}"'"""
        )
    if override.package is not None or "/" in override.key_or_group:
        raise ConfigError(f"{text}: config groups and packages (`group/option`, `key@package`) are not used here")
    _refuse_none(key, override._value)
    if override.is_delete():
        return Argument(text, key, deletes=True)
    return Argument(text, key, deletes=False, value=override.value(), value_text=override.get_value_string())


def _check_shape(text: str) -> None:
    head = text.partition("=")[0]
    if head.startswith("-"):
        bare = head.lstrip("-").replace("-", "_")
        raise ConfigError(f"{text}: keys are given without leading dashes: {bare}=…. Options come before the keys")
    if not head.strip("+~ "):
        raise ConfigError(f"{text!r}: wants key=value")
    if "=" not in text and not head.startswith("~"):
        raise ConfigError(f"{text}: wants key=value, such as {head}=… (and `~{head}` for its default)")
    if head != head.strip() or " " in head:
        raise ConfigError(f"{text!r}: no spaces in or after the key: {head.replace(' ', '')}=…")


def _parse(text: str, head: str, value_text: str, leaf: Leaf | None) -> Override:
    from hydra.errors import HydraException

    takes_text = leaf is not None and leaf.is_text
    try:
        override = _parser().parse_override(text)
    except HydraException as error:
        if takes_text and not _looks_structured(value_text):
            return _parse_quoted(head, value_text)
        key = head.lstrip("+~")
        raise ConfigError(f"{key}: can't read the value {value_text!r}. {_quoting(key, value_text)}") from error
    if takes_text and isinstance(override._value, int | float):
        return _parse_quoted(head, value_text.strip())
    return override


def _quoting(key: str, value_text: str) -> str:
    """How to write it."""
    if value_text.startswith("["):
        return f"""Quote each text in the list, and the argument for the shell: '{key}=["a=b","c d"]'"""
    if value_text.startswith("{"):
        return f"""A mapping is {{name: value}}; quote texts, and the argument for the shell: '{key}={{name: "a=b"}}'"""
    quoted = value_text.strip("\"'").replace('"', '\\"')
    return f"""Quote the value, and the argument for the shell: '{key}="{quoted}"'"""


def _looks_structured(value_text: str) -> bool:
    """A value that began as a list, a mapping, a quoted text or an interpolation, and was then not closed."""
    return value_text.startswith(("[", "{", '"', "'")) or "${" in value_text


def _parse_quoted(head: str, value_text: str) -> Override:
    """Parse a text as if it had been quoted. Hydra's quoting: backslashes count only before a quote."""
    body, trailing = value_text.rstrip("\\"), len(value_text) - len(value_text.rstrip("\\"))
    if '"' in body:
        parts = body.split('"')
        # A run of backslashes before a quote doubles, then the quote is escaped.
        body = '\\"'.join([*(part + "\\" * (len(part) - len(part.rstrip("\\"))) for part in parts[:-1]), parts[-1]])
    return _parser().parse_override(f'{head}="{body}{chr(92) * 2 * trailing}"')


def _parse_bare(text: str) -> Override:
    from hydra.errors import HydraException

    try:
        return _parser().parse_override(text)
    except HydraException as error:
        raise ConfigError(f"{text}: wants key=value, or ~key for its default. ({_first_line(error)})") from error


def _refuse_none(key: str, value: Any) -> None:
    if any(type(item) is str and item == "None" for item in _items(value)):
        raise ConfigError(
            f"{key}: got None, which here would be the text 'None'. Write null for no value; "
            f"""for the text, quote it: '{key}="None"'"""
        )


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _items(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _items(item)
    else:
        yield value


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


@functools.cache
def _parser() -> OverridesParser:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create()
