"""`argosy config coverage | show | docs`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

DOCS_PATH = Path("docs/configuration.md")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command. Nothing heavy is imported until one of its functions runs."""
    parser = subparsers.add_parser("config", help="what configuration keys do, and what comes out of a command line")
    commands = parser.add_subparsers(dest="config_command", required=True, metavar="COMMAND")

    coverage = commands.add_parser("coverage", help="which of verl's keys are honoured, refused, warned about")
    coverage.add_argument("--json", action="store_true", help="print the table as JSON")
    coverage.set_defaults(func=run_coverage)

    show = commands.add_parser("show", help="print the resolved configuration of a command line")
    show.add_argument("overrides", nargs="*", metavar="key=value", help="as for `argosy train`")
    show.add_argument("--config", action="append", default=[], metavar="FILE", help="YAML file; may be repeated")
    show.add_argument("--changed", action="store_true", help="only what differs from the defaults")
    show.add_argument("--check", action="store_true", help="also check ranges, combinations and files; exit 2 if wrong")
    show.set_defaults(func=run_show)

    docs = commands.add_parser("docs", help="write docs/configuration.md")
    docs.add_argument("--output", type=Path, default=DOCS_PATH, metavar="FILE", help=f"default: {DOCS_PATH}")
    docs.set_defaults(func=run_docs)


def run_coverage(args: argparse.Namespace) -> int:
    """Print the three counts and the table."""
    from argosy.config.keys import HONOURED, REFUSED, WARNED

    if args.json:
        print(_coverage_json())
        return 0
    print(f"{len(HONOURED)} honoured, {len(REFUSED)} refused, {len(WARNED)} warned about")
    print(f"{len(_own_keys())} more keys are Argosy's own (argosy.*)")
    rows = [
        *((path, "honoured", row.effect) for path, row in HONOURED.items()),
        *((path, "refused", row.reason) for path, row in REFUSED.items()),
        *((path, "warned", row.reason) for path, row in WARNED.items()),
    ]
    width = max(len(path) for path, _, _ in rows)
    for path, status, why in sorted(rows):
        print(f"{path:{width}}  {status:8}  {why}")
    return 0


def _coverage_json() -> str:
    import json

    from argosy.config.keys import HONOURED, REFUSED, WARNED

    keys: dict[str, dict[str, Any]] = {}
    for path, honoured in HONOURED.items():
        keys[path] = {"status": "honoured", "effect": honoured.effect, "targets": list(honoured.targets or (path,))}
    for path, refused in REFUSED.items():
        keys[path] = {"status": "refused", "reason": refused.reason, "accepted": list(refused.neutral)}
    for path, warned in WARNED.items():
        keys[path] = {
            "status": "warned",
            "reason": warned.reason,
            "silent_for": list(warned.neutral),
            "refused_for": dict(warned.refused_values),
        }
    counts = {"honoured": len(HONOURED), "refused": len(REFUSED), "warned": len(WARNED), "own": len(_own_keys())}
    return json.dumps({"counts": counts, "keys": keys}, indent=2, ensure_ascii=False)


def _own_keys() -> list[str]:
    from argosy.config.convert import leaves

    return [path for path, _ in leaves() if path.startswith("argosy.")]


def run_show(args: argparse.Namespace) -> int:
    """Print the resolved configuration; with --check, what is wrong with it."""
    from argosy.config import load, validate
    from argosy.config.render import render, render_problems
    from argosy.types.errors import ConfigError

    try:
        config = load(args.overrides, args.config)
        print(render(config, only_changed=args.changed), end="")
        if args.check:
            validate(config)
    except ConfigError as error:
        sys.stdout.flush()
        print(render_problems(error.message), file=sys.stderr)
        return 2
    return 0


def run_docs(args: argparse.Namespace) -> int:
    """Write the reference of all keys."""
    from argosy.config.docs import generate

    try:
        args.output.write_text(generate(), encoding="utf-8")
    except OSError as error:
        print(f"can't write {args.output}: {error}", file=sys.stderr)
        return 1
    print(f"wrote {args.output}")
    return 0
