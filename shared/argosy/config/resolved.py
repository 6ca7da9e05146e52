"""Resolved configuration as a file: the controller writes it into the run folder, services read it with `--config`."""

from __future__ import annotations

import math
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
    import yaml

    return str(yaml.dump(config.to_dict(), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=120))


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
    """A dumper whose floats keep their point, so that YAML readers don't take 1e-06 for text."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """SafeDumper without aliases, with floats in a form that every YAML reader takes for a float."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: Any, value: float) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:float", _float(value))

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
