"""Resolved configuration as a file: the controller writes it into the run folder, services read it with `--config`."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argosy.config.schema import Config
from argosy.types.errors import ConfigError


def save_resolved(config: Config, path: Path) -> None:
    """Write YAML. Raises OSError if the file can't be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_yaml(config), encoding="utf-8")


def to_yaml(config: Config) -> str:
    """YAML text that reads back to an equal Config."""
    return dump_yaml(config.to_dict())


def dump_yaml(values: Mapping[str, Any]) -> str:
    """YAML of plain values, in their order; an empty mapping is empty text."""
    import yaml

    return str(yaml.dump(values, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=120)) if values else ""


def load_resolved(path: str | Path) -> Config:
    """Read what `Config.save` wrote. Raises ConfigError on a file that is missing, damaged or of another version."""
    from argosy.config.convert import build_section
    from argosy.config.yamlfile import read_mapping

    try:
        built: Config = build_section(Config, read_mapping(Path(path)))
    except ConfigError as error:
        raise ConfigError(f"{path} is not a resolved configuration of this version:\n{error.message}") from error
    return built


def _dumper() -> Any:
    """A dumper that quotes what our reader or another one would take for something else than text."""
    import yaml

    from argosy.config.yamlfile import FLOAT, FLOAT_TAG

    class Dumper(yaml.SafeDumper):
        """SafeDumper without aliases, with floats in a form that every YAML reader takes for a float."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_implicit_resolver(FLOAT_TAG, FLOAT, list("-+0123456789."))
    Dumper.add_implicit_resolver("!none", re.compile("^None$"), ["N"])  # the text None, which a config file must quote

    def represent(dumper: Any, value: float) -> Any:
        return dumper.represent_scalar(FLOAT_TAG, _float(value))

    Dumper.add_representer(float, represent)
    return Dumper


def _float(value: float) -> str:
    if math.isnan(value):
        return ".nan"
    if math.isinf(value):
        return ".inf" if value > 0 else "-.inf"
    text = repr(value)
    mantissa, sign, exponent = text.partition("e")
    if sign and "." not in mantissa:
        return f"{mantissa}.0e{exponent}"
    return text
