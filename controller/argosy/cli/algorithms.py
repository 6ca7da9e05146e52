"""`argosy algorithms`: what there is to choose from."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 160


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy algorithms`."""
    parser = subparsers.add_parser(
        "algorithms",
        help="advantage estimators, losses and the rest, with formula, paper and keys",
        description="List every algorithm, or show those of one name in full.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="such as grpo, gspo, token-mean, or a family: losses")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="one JSON list on stdout")
    form.add_argument("--markdown", action="store_true", help="print docs/algorithms.md")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print the catalog or a part of it. Exit code 2 for a name that is not there."""
    from argosy.algorithms.families import FAMILIES
    from argosy.cli import algorithm_docs

    if args.markdown:
        sys.stdout.write(algorithm_docs.markdown())
        return 0
    family = args.name if args.name in FAMILIES else None
    found = [
        entry for entry in algorithm_docs.plain(None if family else args.name) if family in (None, entry["family"])
    ]
    if not found:
        return _unknown(args.name)
    if args.json:
        import json

        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif args.name and not family:
        _show(_console(), found)
    else:
        _list(_console(), found)
    return 0


def _unknown(name: str) -> int:
    from difflib import get_close_matches

    from argosy.cli.algorithm_docs import plain

    names = sorted({str(entry["name"]) for entry in plain()})
    near = get_close_matches(name, names, n=3) or names
    print(f"argosy: error: no algorithm is called {name!r}; there is {', '.join(near)}", file=sys.stderr)
    return 2


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def _list(console: Console, found: list[dict[str, Any]]) -> None:
    """A table per family: name, summary over formula, paper, keys."""
    from rich.table import Table
    from rich.text import Text

    from argosy.algorithms.families import FAMILIES

    for name, family in FAMILIES.items():
        rows = [entry for entry in found if entry["family"] == name]
        if not rows:
            continue
        chosen = f" — {' or '.join(family.chosen_by)}" if family.chosen_by else ""
        table = Table(title=f"{family.title} ({name}){chosen}", title_justify="left", title_style="bold", expand=True)
        table.add_column("name", no_wrap=True)
        table.add_column("what it does, and its formula", ratio=5)
        table.add_column("paper", ratio=2)
        table.add_column("keys", ratio=2, overflow="fold")
        for entry in rows:
            what = Text.assemble(entry["summary"], "\n", (entry["formula"], "cyan"))
            keys = "\n".join(key["key"].removeprefix("actor_rollout_ref.actor.") for key in entry["keys"])
            table.add_row(entry["name"], what, Text(entry["paper"]), keys)
        console.print(table)
    console.print("argosy algorithms NAME shows one in full; recipes are in examples/recipes, and docs/algorithms.md")


def _show(console: Console, found: list[dict[str, Any]]) -> None:
    """Everything about each."""
    from rich.table import Table
    from rich.text import Text

    from argosy.algorithms.families import FAMILIES

    for entry in found:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row(entry["name"], Text(f"{entry['summary']} ({FAMILIES[entry['family']].title})"))
        table.add_row("formula", Text(entry["formula"], style="cyan"))
        table.add_row("paper", Text(entry["paper"]))
        if entry["chosen_by"]:
            table.add_row("set", Text("\n".join(entry["chosen_by"])))
        if entry["needs"]:
            table.add_row("needs", Text("\n".join(entry["needs"])))
        for i, key in enumerate(entry["keys"]):
            setting = (f"{key['key']}={key['default'] or repr('')}", "cyan")
            meaning = f"\n  {key['meaning']} {key['accepts']}".rstrip()
            table.add_row("" if i else "keys", Text.assemble(setting, meaning))
        console.print(table)
        console.print()
