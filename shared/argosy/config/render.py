"""The resolved configuration and the problems in it, as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from argosy.config.resolved import dump_yaml, to_yaml
from argosy.config.schema import Config

if TYPE_CHECKING:
    from rich.console import Console


def render(config: Config, *, only_changed: bool = False) -> str:
    """YAML of everything, or only of what differs from the defaults."""
    if not only_changed:
        return to_yaml(config)
    return dump_yaml(_difference(config.to_dict(), Config().to_dict()))


def _difference(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            inner = _difference(value, default)
            if inner:
                changed[name] = inner
        elif value != default:
            changed[name] = value
    return changed


def print_config(config: Config, console: Console, *, only_changed: bool = True) -> None:
    """Onto a rich console, coloured where it is a terminal."""
    from rich.syntax import Syntax

    text = render(config, only_changed=only_changed).rstrip()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def render_problems(message: str) -> str:
    """A ConfigError's message for the end of a command: how many problems, then one a line.

    >>> print(render_problems("a: no such key"))
    configuration: 1 problem
      a: no such key
    """
    lines = message.splitlines()
    return "\n".join(
        [f"configuration: {len(lines)} problem{'s' * (len(lines) != 1)}", *(f"  {line}" for line in lines)]
    )
