"""Which run a command means: the one of a folder, or the only one that is under way below this place."""

from __future__ import annotations

import json
from pathlib import Path

from argosy.controller.serving import ADDRESS_FILE
from argosy.types.errors import InvalidInputError, UnavailableError

_BELOW = ("", "*/", "*/*/", "*/*/*/")
"""Where run folders are by default: checkpoints/PROJECT/EXPERIMENT; and with a folder of one's own: runs/demo."""


def find_endpoint(run: Path | None) -> str:
    """host:port of the controller of the run in folder `run`; None: of the only run below the current folder.

    Raises InvalidInputError where it isn't clear which run is meant, UnavailableError if the run isn't under way.
    """
    folder = _only_run() if run is None else run
    path = folder / ADDRESS_FILE
    if not folder.is_dir():
        raise InvalidInputError(f"--run: there is no folder {folder}: give a run's folder (trainer.default_local_dir)")
    try:
        return str(json.loads(path.read_text())["address"])
    except FileNotFoundError:
        raise UnavailableError(
            f"no run is under way in {folder}: it has no {ADDRESS_FILE}, which a controller writes when it serves"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{path} can't be read: {error}") from error


def _only_run() -> Path:
    found = sorted({path.parent for below in _BELOW for path in Path().glob(f"{below}{ADDRESS_FILE}")})
    if len(found) == 1:
        return found[0]
    if not found:
        raise InvalidInputError("--run: no run is under way below the current folder: give its folder")
    shown = ", ".join(map(str, found[:5])) + (" …" if len(found) > 5 else "")
    raise InvalidInputError(f"--run: several runs are under way below the current folder: which of {shown}?")
