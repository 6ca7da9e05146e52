"""`argosy data`: make datasets to try, and look at what a dataset file holds."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from argosy.controller.data.rows import DataRow
    from argosy.text import TextTokenizer


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `argosy data make | show`."""
    parser = subparsers.add_parser("data", help="make and show datasets")
    commands = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")
    _add_make(commands)
    _add_show(commands)


def _add_make(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "make",
        help="make train.parquet and val.parquet from reasoning-gym tasks",
        description="Write verl-schema Parquet of reasoning-gym tasks. No question of train.parquet is in val.parquet.",
    )
    parser.add_argument(
        "--task",
        action="append",
        required=True,
        metavar="NAME[:k=v,…]",
        help="a reasoning-gym task, with its own arguments; several --task are mixed in equal shares",
    )
    parser.add_argument("--task-arg", action="append", default=[], metavar="k=v", help="an argument for every task")
    parser.add_argument("--train", type=int, default=2000, metavar="N", help="training rows (default 2000)")
    parser.add_argument("--val", type=int, default=300, metavar="N", help="held-out rows (default 300)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.add_argument("--system-prompt", metavar="TEXT", help="the system message (default: none)")
    parser.add_argument("--prompt-suffix", default="", metavar="TEXT", help="text after the question")
    parser.add_argument(
        "--question-format",
        default="{question}",
        metavar="TEXT",
        help="the user's message; {question} or any field of the task's metadata, such as {expression} of chain_sum",
    )
    parser.add_argument("--force", action="store_true", help="replace files in DIR that hold other rows")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(func=run_make)


def _add_show(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("show", help="rows, counts and lengths of a dataset file")
    parser.add_argument("files", nargs="+", metavar="FILE", help="Parquet, JSON or JSON lines; globs work")
    parser.add_argument("-n", "--rows", type=int, default=3, metavar="N", help="rows to print (default 3)")
    parser.add_argument("--model", metavar="DIR", help="model folder: shows templated prompts and counts tokens")
    parser.add_argument("--prompt-key", default="prompt")
    parser.add_argument("--reward-fn-key", default="data_source")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.set_defaults(func=run_show)


def run_make(args: argparse.Namespace) -> int:
    """`argosy data make`."""
    from argosy.controller.data.make import MakeOptions, TaskSpec, make_splits, write_splits

    options = MakeOptions(
        tasks=tuple(TaskSpec.parse(text, args.task_arg) for text in args.task),
        train_count=args.train,
        val_count=args.val,
        seed=args.seed,
        system_prompt=args.system_prompt,
        question_format=args.question_format + args.prompt_suffix.replace("{", "{{").replace("}", "}}"),
    )
    splits = make_splits(options)
    paths = write_splits(splits, args.out.expanduser(), replace=args.force)
    summary = {
        name: {
            "path": str(path),
            "row_count": len(splits[name].rows),
            "commonest_answer_share": round(splits[name].constant_share, 4),
        }
        for name, path in paths.items()
    }
    if args.json:
        print(json.dumps(summary))
        return 0
    from rich.console import Console

    console = Console(highlight=False)
    for name, entry in summary.items():
        console.print(
            f"[bold]{name}[/bold]  {entry['row_count']:,} rows  {entry['path']}  "
            f"[dim](guessing the commonest answer: {entry['commonest_answer_share']:.1%})[/dim]"
        )
    example = next(iter(splits.values())).rows[0]
    console.print(f"for example {example['prompt'][-1]['content']!r} → {_answer(example)!r}", markup=False)
    console.print(f"[dim]look at more with[/dim] argosy data show {next(iter(paths.values()))}")
    return 0


def run_show(args: argparse.Namespace) -> int:
    """`argosy data show`."""
    from collections import Counter

    import numpy as np

    from argosy.controller.data.files import resolve_files
    from argosy.controller.data.rows import Dataset

    tokenizer = _tokenizer(args.model)
    paths = resolve_files(args.files, "FILE")
    dataset = Dataset(paths, prompt_key=args.prompt_key, reward_fn_key=args.reward_fn_key, name="FILE")
    sources: Counter[str] = Counter()
    lengths: list[int] = []
    shown: list[dict[str, Any]] = []
    for row in dataset.rows():
        sources[row.data_source] += 1
        text = _prompt_text(row, tokenizer)
        lengths.append(len(tokenizer.encode_rendered(text)) if tokenizer else len(text))
        if len(shown) < args.rows:
            shown.append(_shown(row, text))
    summary = {
        "files": [str(path) for path in paths],
        "row_count": len(dataset),
        "data_sources": dict(sources),
        "prompt_length": {"unit": "tokens" if tokenizer else "characters", **_statistics(np.array(lengths))},
        "rows": shown,
    }
    if args.json:
        print(json.dumps(summary))
    else:
        _print_show(summary)
    return 0


def _tokenizer(model: str | None) -> TextTokenizer | None:
    if model is None:
        return None
    from argosy.text import load_tokenizer

    return load_tokenizer(model)


def _prompt_text(row: DataRow, tokenizer: TextTokenizer | None) -> str:
    if tokenizer is not None:
        return tokenizer.render(row.messages, row.tools or None)
    return "\n".join(f"{message['role']}: {message['content']}" for message in row.messages)


def _shown(row: DataRow, text: str) -> dict[str, Any]:
    return {
        "data_source": row.data_source,
        "prompt": text,
        "ground_truth": row.ground_truth,
        "extra_info": dict(row.extra_info),
    }


def _statistics(lengths: npt.NDArray[np.int64]) -> dict[str, float]:
    import numpy as np

    p50, p95 = np.percentile(lengths, [50, 95])
    return {
        "min": int(lengths.min()),
        "mean": round(float(lengths.mean()), 1),
        "p50": float(p50),
        "p95": float(p95),
        "max": int(lengths.max()),
    }


def _print_show(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(highlight=False)
    for number, row in enumerate(summary["rows"]):
        body = Text(row["prompt"])
        body.append("\nground truth  ", style="bold")
        body.append(json.dumps(row["ground_truth"], ensure_ascii=False), style="green")
        body.append("\nextra_info    ", style="bold")
        body.append(json.dumps(row["extra_info"], ensure_ascii=False), style="dim")
        console.print(Panel(body, title=f"row {number} · {row['data_source']}", title_align="left"))
    length = dict(summary["prompt_length"])
    unit = length.pop("unit")
    console.print(f"[bold]{summary['row_count']:,} rows[/bold] in {', '.join(summary['files'])}")
    console.print(
        "data sources   " + ", ".join(f"{name} ({count:,})" for name, count in summary["data_sources"].items())
    )
    console.print(f"prompt {unit}  " + ", ".join(f"{name} {value:g}" for name, value in length.items()))


def _answer(row: dict[str, Any]) -> str:
    return str(row["reward_model"]["ground_truth"])
