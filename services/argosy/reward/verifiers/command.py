"""What `argosy reward try` does."""

from __future__ import annotations

import difflib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argosy.reward.messages import outcome_to_json
from argosy.reward.verifiers import PREFIXES, VERIFIERS, algebra, find_verifier, known_sources
from argosy.reward.verifiers.code import CODE
from argosy.reward.verifiers.scoring import score
from argosy.types.errors import InvalidInputError
from argosy.types.records import Abstained, Outcome, Scored

MOST_CHARACTERS = 4 * 1024 * 1024
"""A longer response isn't read."""


@dataclass(frozen=True, slots=True)
class Request:
    """The command's arguments."""

    source: str
    truth: str | None
    truth_json: str | None
    response: str | None
    file: str | None
    extra_json: str


def list_sources(*, as_json: bool) -> int:
    """Print every data source with its verifier and that verifier's options."""
    named = {**VERIFIERS, **{f"{prefix}*": verifier for prefix, verifier in PREFIXES.items()}}
    if as_json:
        print(json.dumps({source: {"verifier": one.name, "options": one.options} for source, one in named.items()}))
        return 0
    width = max(map(len, named))
    print(f"{'data source':{width}}  verifier         options (extra_info.reward_kwargs; all take penalties)")
    for source, verifier in named.items():
        print(f"{source:{width}}  {verifier.name:16} {', '.join(verifier.options)}".rstrip())
    return 0


def try_one(request: Request, *, as_json: bool) -> int:
    """Score and print. Raises InvalidInputError for an unknown source, JSON that is none, or a file that isn't there.

    It runs in this process, so that a verifier can be debugged.
    """
    verifier = find_verifier(request.source)
    if verifier is None:
        near = difflib.get_close_matches(request.source, known_sources(), n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InvalidInputError(
            f"no verifier for data source {request.source!r}{hint} (--list shows all)", field="source"
        )
    truth = request.truth if request.truth_json is None else _json(request.truth_json, "--truth-json")
    extra = _json(request.extra_json, "--extra")
    if not isinstance(extra, dict):
        raise InvalidInputError(f"--extra must be a JSON object, got {request.extra_json[:80]!r}")
    response = _response(request)
    verifier.prepare()
    with algebra.isolated():  # with the limit that workers have, for the same verdict
        outcome = score(verifier, response, truth, extra)
    report = {"source": request.source, "verifier": verifier.name, **outcome_to_json(outcome)}
    if verifier.name == "code" and isinstance(outcome, Scored):
        report["sandbox"] = CODE.sandbox.describe()
    print(json.dumps(report, ensure_ascii=False) if as_json else _shown(report, outcome))
    return 0 if isinstance(outcome, Scored) else 1


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"{name} is no JSON: {error}") from error


def _response(request: Request) -> str:
    if request.response is not None:
        return request.response
    try:
        if request.file in (None, "-"):
            text = sys.stdin.read(MOST_CHARACTERS + 1)
        else:
            with Path(str(request.file)).open(encoding="utf-8") as file:
                text = file.read(MOST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"can't read the response: {error}") from error
    if len(text) > MOST_CHARACTERS:
        raise InvalidInputError(f"the response is longer than {MOST_CHARACTERS} characters")
    return text


def _shown(report: dict[str, Any], outcome: Outcome) -> str:
    lines = [f"verifier  {report['verifier']} (data source {report['source']})"]
    if isinstance(outcome, Scored):
        lines.append(f"score     {outcome.score:g}")
        lines += [f"{name:9} {_value(value)}" for name, value in outcome.parts.items()]
        lines += [f"sandbox   {report['sandbox']}"] if "sandbox" in report else []
    elif isinstance(outcome, Abstained):
        lines.append(f"abstained {outcome.reason}")
    else:
        lines.append(f"failed    {outcome.reason}: {outcome.message}")
    return "\n".join(lines)


def _value(value: float | str | bool) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
