"""YAML files read strictly: a duplicate key is refused, and numbers such as 1e-6 are numbers."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from argosy.types.errors import ConfigError

FLOAT_TAG = "tag:yaml.org,2002:float"
FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?(?:[0-9][0-9_]*)[eE][-+]?[0-9]+
        |\.[0-9_]+(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    re.VERBOSE,
)
"""YAML 1.2's floats: 1.1, which PyYAML reads, takes 1e-6 for text."""


def read_mapping(path: Path, *, refuse_none: bool = False) -> dict[str, Any]:
    """The file's top-level mapping; an empty file is an empty mapping.

    `refuse_none` refuses an unquoted None, which would be the text "None".

    Raises ConfigError on a missing file, on YAML that can't be parsed, on a duplicate key (with both lines) and on
    keys that aren't text.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the configuration file {path}: {error}") from error
    return parse_mapping(text, str(path), refuse_none=refuse_none)


def read_list(path: Path) -> list[Any]:
    """The file's top-level list. Raises ConfigError as read_mapping does."""
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the configuration file {path}: {error}") from error
    value = _parse(text, str(path), refuse_none=False)
    if not isinstance(value, list):
        raise ConfigError(f"{path}: wants a list at the top (lines that begin with -), got {type(value).__name__}")
    return value


def parse_mapping(text: str, name: str, *, refuse_none: bool = False) -> dict[str, Any]:
    """As read_mapping, from text; `name` stands for it in messages."""
    value = _parse(text, name, refuse_none=refuse_none)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: wants `key: value` lines at the top, got {type(value).__name__}")
    return value


def _parse(text: str, name: str, *, refuse_none: bool) -> Any:
    import yaml

    try:
        return yaml.load(text, Loader=_loader(refuse_none))  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        where = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{name}{where}: {error.problem or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {error}") from error


@functools.cache
def _loader(refuse_none: bool) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """SafeLoader that refuses duplicate keys."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: dict[str, int] = {}
            for key_node, _ in node.value:
                key, mark = key_node.value, key_node.start_mark
                if key_node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                    raise yaml.MarkedYAMLError(problem=f"the key {key!r} must be text: quote it", problem_mark=mark)
                if key in seen:
                    problem = f"the key {key!r} was already given in line {seen[key]}: keep one of them"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
                seen[key] = mark.line + 1
            return dict(super().construct_mapping(node, deep=deep))

        def construct_scalar(self, node: Any) -> Any:
            if refuse_none and node.value == "None" and node.style is None:
                problem = "None would be the text 'None': write null for no value, or 'None' in quotes for the text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return super().construct_scalar(node)

    implicit = {
        first: [(tag, regexp) for tag, regexp in resolvers if tag != FLOAT_TAG]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.yaml_implicit_resolvers = implicit
    Loader.add_implicit_resolver(FLOAT_TAG, FLOAT, list("-+0123456789."))
    return Loader
