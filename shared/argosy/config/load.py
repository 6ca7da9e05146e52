"""From a command line and configuration files to a typed Config, every problem in one message.

Order: defaults, then each file, then each argument; the later wins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from argosy.config.arguments import Argument, parse_argument
from argosy.config.convert import build_section
from argosy.config.lookup import find_leaf, is_section, judge, targets_of
from argosy.config.schema import Config
from argosy.config.suggest import suggest
from argosy.config.yamlfile import read_mapping
from argosy.types.errors import ConfigError

_NOT_GIVEN = "auto"
"""In place of a default that depends on other keys."""
_RUN_FOLDER = "checkpoints/${trainer.project_name}/${trainer.experiment_name}"


def print_warning(message: str) -> None:
    """One line on stderr."""
    print(f"warning: {message}", file=sys.stderr)


def load(
    overrides: Sequence[str],
    config_files: Sequence[str | Path] = (),
    *,
    on_warning: Callable[[str], None] = print_warning,
) -> Config:
    """Read the configuration: keys and types are checked here, their sense by `argosy.config.validate`.

    Raises ConfigError whose message has one line per problem: the full path, what was given, what to do. A key that
    can have no effect here is reported to `on_warning`.
    """
    problems: list[str] = []
    base = _defaults()
    for file in config_files:
        _apply_file(base, Path(file), problems, on_warning)
    texts: list[str] = []
    for text in overrides:
        try:
            texts += _hydra_overrides(parse_argument(text), problems, on_warning)
        except ConfigError as error:
            problems.append(error.message)
    if problems:
        raise ConfigError("\n".join(problems))
    from argosy.config.compose import compose_values

    config = _with_correction(build_section(Config, compose_values(base, texts)))
    if "attn_implementation" in config.actor_rollout_ref.model.override_config:
        on_warning(
            "actor_rollout_ref.model.override_config.attn_implementation has no effect: attention is computed by "
            "Argosy's own packed and cached kernels."
        )
    from argosy.config.validate.unused import find_unused

    for warning in find_unused(config):
        on_warning(warning)
    return config


def _defaults() -> dict[str, Any]:
    values = Config().to_dict()
    values["trainer"]["default_local_dir"] = _RUN_FOLDER
    values["algorithm"]["rollout_correction"]["rollout_is"] = _NOT_GIVEN
    return values


def _with_correction(config: Config) -> Config:
    """Importance weights by default, where samples may be older than the weights that are trained."""
    correction = config.algorithm.rollout_correction
    if correction.rollout_is != _NOT_GIVEN:
        return config
    corrected = config.argosy.max_staleness > 0 and not correction.bypass_mode
    return config.with_values({"algorithm.rollout_correction.rollout_is": "token" if corrected else None})


def _hydra_overrides(argument: Argument, problems: list[str], on_warning: Callable[[str], None]) -> Iterator[str]:
    """The overrides that Hydra gets for one argument: none if it is dropped, several if it sets several keys."""
    if argument.deletes:
        yield from _deletion(argument, problems)
        return
    targets = targets_of(argument.key)
    if targets:
        # `+key=` of a key that is there is what verl's users type where verl's own tree lacks it: set it.
        yield from (f"++{target}={argument.value_text}" for target in targets)
        return
    if is_section(argument.key):
        if not isinstance(argument.value, Mapping):
            problems.append(_not_a_section(argument.key, argument.value_text))
            return
        for path, value in flatten(argument.value, f"{argument.key}."):
            _judge(path, value, "", problems, on_warning)
        if not problems:
            yield f"++{argument.key}={argument.value_text}"
        return
    for path, value in flatten({argument.key: argument.value}) if argument.value else [(argument.key, argument.value)]:
        _judge(path, value, "", problems, on_warning)


def _deletion(argument: Argument, problems: list[str]) -> Iterator[str]:
    """`~key` takes the default again: the typed tree has no holes."""
    targets = targets_of(argument.key) or ((argument.key,) if is_section(argument.key) else ())
    if not targets:
        problems.append(f"~{argument.key}: no such key. {suggest(argument.key)}")
    for target in targets:
        yield f"~{target}"


def _judge(
    path: str, value: Any, where: str, problems: list[str], on_warning: Callable[[str], None]
) -> tuple[str, ...]:
    verdict = judge(path, value)
    if verdict.problem:
        problems.append(where + verdict.problem)
    if verdict.warning:
        on_warning(where + verdict.warning)
    return verdict.targets


def _apply_file(base: dict[str, Any], path: Path, problems: list[str], on_warning: Callable[[str], None]) -> None:
    try:
        values = read_mapping(path, refuse_none=True)
        if "defaults" in values:
            from argosy.config.compose import compose_file

            values = compose_file(path)
    except ConfigError as error:
        problems.append(error.message)
        return
    for key, value in flatten(values):
        if is_section(key):
            problems.append(f"{path}: {_not_a_section(key, str(value))}")
            continue
        for target in _judge(key, value, f"{path}: ", problems, on_warning):
            _put(base, target, value)


def _not_a_section(key: str, value_text: str) -> str:
    return f"{key}: is a section of keys, got {value_text!r}. Set its keys one by one: {key}.KEY=VALUE"


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(full path, value) of everything given, down to our fields and to scalars."""
    for name, value in values.items():
        path = f"{prefix}{name}"
        leaf = find_leaf(path)
        if isinstance(value, Mapping) and leaf is None and (value or is_section(path)):
            yield from flatten(value, f"{path}.")
        else:
            yield path, value


def _put(base: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        base = base.setdefault(parent, {})
    base[name] = value
