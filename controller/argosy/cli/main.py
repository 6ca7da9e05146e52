"""`argosy`: the command line. Parsers are light; what a command needs is imported when it runs."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

COMMANDS: tuple[str, ...] = (
    "train",
    "rollout",
    "record",
    "status",
    "members",
    "scale",
    "ledger",
    "serve",
    "config",
    "algorithms",
    "data",
    "model",
    "reward",
)
"""Modules of `argosy.cli` that each add one command, in the order of `--help`."""

_PLACES = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR}
)
"""Errors that are about the place that a user named, not about us."""

DESCRIPTION = """\
Reinforcement-learning post-training for language models as a fleet of independent gRPC services.

Start here:
  argosy model import --out models/smollm2         a real small model, as an ordinary Hugging Face folder
  argosy data make --task chain_sum --out data     training and held-out problems in verl's Parquet schema
  argosy train algorithm.adv_estimator=grpo actor_rollout_ref.model.path=models/smollm2 \\
      data.train_files=data/train.parquet data.val_files=data/val.parquet
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command tree."""
    parser = argparse.ArgumentParser(
        prog="argosy", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"argosy {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(f"argosy.cli.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Exit codes: 0 done, 1 failed, 2 wrong input, 128 + n ended by signal n."""
    from argosy.types.errors import ArgosyError, InvalidInputError

    args = _parse(build_parser(), argv)
    try:
        return int(args.func(args))
    except InvalidInputError as error:
        return _fail(error, 2)
    except ArgosyError as error:
        return _fail(error, int(getattr(error, "exit_code", 1)))
    except KeyboardInterrupt:
        print("argosy: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone, as in `argosy … | head`
        return 1
    except OSError as error:
        if error.errno not in _PLACES or error.filename is None:
            return _defect(error)
        return _fail(f"can't use {error.filename}: {os.strerror(error.errno)}", 1)
    except Exception as error:  # noqa: BLE001 - the last line of defence: say it whole, fail loudly
        return _defect(error)


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse; keys may stand before and after options (argparse alone takes only the first run of them)."""
    args, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word.startswith("-") or not hasattr(args, "overrides")]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def _fail(error: Exception | str, code: int) -> int:
    sys.stdout.flush()
    print(f"argosy: error: {error}", file=sys.stderr, flush=True)
    return code


def _defect(error: Exception) -> int:
    traceback.print_exception(error)
    print(f"argosy: internal error: {type(error).__name__}: {error}", file=sys.stderr)
    return 1


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("argosy")
    except PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
