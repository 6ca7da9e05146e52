"""Classes that configuration files name: "package.module.Class", or "path/to/file.py:Class"."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from argosy.types.errors import ConfigError


def find_class(name: Any, base: type, where: str, folder: Path) -> type[Any]:
    """Import a class by its name.

    Args:
        name: As the file has it; a relative path is looked for beside that file, then in the working folder.
        base: What it must extend.
        where: File and key, for messages.
        folder: Of the file that names it.

    Raises:
        ConfigError: There is no such module, file or class; importing it fails; or it extends something else.
    """
    if not isinstance(name, str) or not name.strip():
        raise ConfigError(f"{where}: wants the name of a class, package.module.Class or file.py:Class; got {name!r}")
    path, colon, attribute = name.rpartition(":")
    if not colon:
        path, _, attribute = name.rpartition(".")
    if not path or not attribute.isidentifier():
        raise ConfigError(f"{where}: got {name!r}, wants package.module.Class or file.py:Class")
    try:
        module = _file_module(path, folder) if path.endswith(".py") else importlib.import_module(path)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    except Exception as error:
        raise ConfigError(f"{where}: {path} can't be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ConfigError(f"{where}: {path} has no class {attribute}")
    if not issubclass(found, base):
        raise ConfigError(f"{where}: {name} must extend {base.__module__}.{base.__qualname__}")
    return found


def _file_module(path: str, folder: Path) -> Any:
    """A module from a file, imported once for each file."""
    tried = [folder / path, Path(path).expanduser()]
    file = next((one.resolve() for one in tried if one.is_file()), None)
    if file is None:
        raise ConfigError(f"there is no file {' nor '.join(dict.fromkeys(map(str, tried)))}")
    name = f"argosy_user_{file.stem}_{hashlib.sha256(str(file).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
