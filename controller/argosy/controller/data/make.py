"""Datasets of reasoning-gym tasks in verl's schema, train and held-out disjoint by question."""

from __future__ import annotations

import ast
import difflib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argosy.types.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES_PER_QUESTION = 40
_LEAST_TRIES = 2000
"""Draws before a task is said to have no more distinct questions: this many, or so many for each one wanted."""


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One reasoning-gym task and its arguments.

    >>> TaskSpec.parse("chain_sum:max_terms=2,max_digits=1")
    TaskSpec(name='chain_sum', args={'max_terms': 2, 'max_digits': 1})
    """

    name: str
    args: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, shared: Sequence[str] = ()) -> TaskSpec:
        """Read NAME or NAME:key=value,key=value; `shared` are further key=value, for all tasks.

        Raises InvalidInputError on anything else.
        """
        name, _, own = text.partition(":")
        pairs = [*shared, *_split(own)]
        args: dict[str, Any] = {}
        for pair in pairs:
            key, equals, value = pair.partition("=")
            if not equals or not key.strip().isidentifier():
                raise InvalidInputError(f"a task argument looks like max_terms=2, got {pair!r}")
            args[key.strip()] = _value(value.strip())
        return cls(name.strip(), args)


@dataclass(frozen=True, slots=True)
class MakeOptions:
    """What to make."""

    tasks: tuple[TaskSpec, ...]
    train_count: int
    val_count: int
    seed: int = 0
    system_prompt: str | None = None
    """None leaves the system message out (a chat template may then put its own); an empty one is written as it is."""
    question_format: str = "{question}"
    """The user's message. Besides {question}, any field of the task's metadata ({expression} of chain_sum)."""

    def __post_init__(self) -> None:
        if not self.tasks:
            raise InvalidInputError("name at least one --task")
        if self.train_count < 1 or self.val_count < 0:
            raise InvalidInputError(f"--train must be ≥ 1 and --val ≥ 0, got {self.train_count} and {self.val_count}")


@dataclass(frozen=True, slots=True)
class MadeSplit:
    """One split as written."""

    rows: list[dict[str, Any]]
    constant_share: float
    """Share of rows that the commonest answer of each task solves: what guessing alone can reach."""


def make_splits(options: MakeOptions) -> dict[str, MadeSplit]:
    """Rows of "train" and "val". No question of one is in the other, whatever its case and spacing.

    Equal options give equal rows. The tasks of a mixture have equal shares.

    Raises:
        InvalidInputError: An unknown task or argument, or fewer distinct questions than asked for (with the numbers).
    """
    splits: dict[str, list[dict[str, Any]]] = {"train": [], "val": []}
    seen: set[str] = set()
    for place, task in enumerate(options.tasks):
        train_share = _share(options.train_count, len(options.tasks), place)
        val_share = _share(options.val_count, len(options.tasks), place)
        entries = _distinct(task, train_share + val_share, options.seed, seen)
        # The first draws are as good as the last, but for tasks that grow harder with the index: hence the shuffle.
        random.Random(f"{options.seed}/{place}").shuffle(entries)
        splits["val"] += [_row(entry, task, "val", options) for entry in entries[:val_share]]
        splits["train"] += [_row(entry, task, "train", options) for entry in entries[val_share:]]
    for name, rows in splits.items():
        random.Random(f"{options.seed}/{name}").shuffle(rows)
        for index, row in enumerate(rows):
            row["extra_info"]["index"] = index
    return {name: MadeSplit(rows, _constant_share(rows)) for name, rows in splits.items()}


def write_splits(splits: Mapping[str, MadeSplit], folder: Path, *, replace: bool = False) -> dict[str, Path]:
    """Write train.parquet and val.parquet, each whole or not at all; an empty split is not written.

    Raises InvalidInputError if a file with other rows is there already, which runs may need to resume; not with
    `replace`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = {
        folder / f"{name}.parquet": pa.Table.from_pylist(split.rows) for name, split in splits.items() if split.rows
    }
    others = [str(path) for path, table in tables.items() if path.exists() and not _holds(path, table)]
    if others and not replace:
        raise InvalidInputError(
            f"{' and '.join(others)} exist{'s' if len(others) == 1 else ''} with other rows, and runs that used them "
            "could not be resumed; choose another --out, or replace them with --force"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, table in tables.items():
        partial = path.with_name(f".{path.name}.partial")
        pq.write_table(table, partial)
        partial.replace(path)
    return {path.stem: path for path in tables}


def _holds(path: Path, table: pa.Table) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return bool(pq.read_table(path).equals(table))
    except (OSError, pa.ArrowException):
        return False  # no Parquet at all


def _share(total: int, parts: int, place: int) -> int:
    return total // parts + (1 if place < total % parts else 0)


def _distinct(task: TaskSpec, count: int, seed: int, seen: set[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    tries = max(_LEAST_TRIES, _TRIES_PER_QUESTION * count)
    for entry in _entries(task, tries, seed):
        if len(found) == count:
            break
        key = " ".join(str(entry["question"]).casefold().split())
        if key not in seen:
            seen.add(key)
            found.append(entry)
    if len(found) < count:
        args = f" with {', '.join(f'{name}={value}' for name, value in task.args.items())}" if task.args else ""
        raise InvalidInputError(
            f"the task {task.name}{args} gave {len(found)} distinct questions in {tries} draws, and {count} are needed "
            "for disjoint train and val sets: ask for fewer rows, widen the task's arguments, or mix in another --task"
        )
    return found


def _entries(task: TaskSpec, count: int, seed: int) -> Iterator[dict[str, Any]]:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise InvalidInputError(f"making data needs reasoning-gym: `pip install argosy[data]` ({error})") from error
    if task.name not in DATASETS:
        close = difflib.get_close_matches(task.name, DATASETS, 3)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(sorted(DATASETS))}"
        raise InvalidInputError(f"reasoning-gym has no task {task.name!r}; {hint}")
    known = sorted(set(DATASETS[task.name][1].__dataclass_fields__) - {"seed", "size"})
    unknown = sorted(task.args.keys() - set(known))
    if unknown:
        raise InvalidInputError(f"the task {task.name} has no argument {', '.join(unknown)}; it has {', '.join(known)}")
    try:
        dataset = reasoning_gym.create_dataset(task.name, seed=seed, size=count, **task.args)
    except (AssertionError, TypeError, ValueError) as error:
        raise InvalidInputError(f"the task {task.name} refuses its arguments {dict(task.args)}: {error}") from error
    for index in range(count):
        yield dataset[index]


def _row(entry: Mapping[str, Any], task: TaskSpec, split: str, options: MakeOptions) -> dict[str, Any]:
    question = _question(entry, task, options.question_format)
    messages = [{"role": "user", "content": question}]
    if options.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": options.system_prompt})
    return {
        "data_source": f"reasoning_gym/{task.name}",
        "prompt": messages,
        "ability": "reasoning",
        "reward_model": {"style": "rule", "ground_truth": str(entry["answer"])},
        "extra_info": {
            "split": split,
            "index": 0,
            "task": task.name,
            "question": str(entry["question"]),
            # As text, since each task has other fields, and Arrow would give every row the union of them (case C5).
            "metadata": json.dumps(entry["metadata"], default=str),
        },
    }


def _question(entry: Mapping[str, Any], task: TaskSpec, form: str) -> str:
    fields = {**entry["metadata"], "question": entry["question"]}
    try:
        return form.format(**fields)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"the question format {form!r} does not fit {task.name} ({type(error).__name__}: {error}); it can name "
            f"{', '.join(sorted(fields))}, and braces are written twice"
        ) from error


def _constant_share(rows: Sequence[Mapping[str, Any]]) -> float:
    """Guessing each task's commonest answer would solve this share."""
    answers: dict[str, Counter[str]] = {}
    for row in rows:
        answers.setdefault(row["data_source"], Counter())[row["reward_model"]["ground_truth"]] += 1
    best = sum(counter.most_common(1)[0][1] for counter in answers.values())
    return best / len(rows) if rows else 0.0


def _split(text: str) -> list[str]:
    """Cut at commas outside brackets and quotes: `weights=[1,2],name='a'` has two parts."""
    parts: list[str] = []
    depth, quote, current = 0, "", ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth and not quote:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [part for part in [*parts, current] if part.strip()]


def _value(text: str) -> Any:
    """A Python literal, true/false/null as YAML has them, or the text itself."""
    words = {"true": True, "false": False, "null": None, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
