"""Output tokens per second of every rollout engine that is installed, in one run, beside transformers' `generate`.

    python benchmarks/rollout.py --threads 1 2 --dtypes bfloat16 float32

Every engine answers the same prompts with the same number of tokens each, sampled at temperature 1, with at most
`--in-flight` samples at once; EOS is off, so that lengths are equal. `generate` gets left-padded batches of that size;
a row's tokens beyond its own length don't count, since a padded batch can't stop earlier. All but `generate` report a
log-prob with every token. Each runs in a process of its own, bound to as many cores as it gets threads; vLLM and SGLang
in the interpreter of `make install-engines`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from measuring import model_of
from rollout_engines import ENGINES, Measured, add_arguments

ENGINES_PYTHON = Path(__file__).parent.parent / ".venvs" / "engines" / "bin" / "python"
ELSEWHERE = {"vllm": "vllm", "vllm-alone": "vllm", "sglang": "sglang"}
"""Engines that need the other interpreter, and the package that it must have."""
REFERENCES = ("model.generate", "vllm alone")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--time-limit", type=float, default=1800, help="seconds for one engine")
    parser.add_argument("--engines-python", type=Path, default=ENGINES_PYTHON)
    parser.add_argument("--quick", action="store_true", help="a tiny random model and 4 short prompts")
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    add_arguments(parser)
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts, args.in_flight, args.max_prompt, args.max_output = 4, 4, 20, 20
    return args


def interpreter_of(engine: str, args: argparse.Namespace) -> Path | None:
    """The Python that has an engine; None if none has."""
    package = ELSEWHERE.get(engine)
    if package is None:
        return Path(sys.executable)
    if not args.engines_python.exists():
        return None
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    found = subprocess.run([args.engines_python, "-c", probe], check=False, timeout=60)
    return args.engines_python if found.returncode == 0 else None


def measure(engine: str, python: Path, dtype: str, threads: int, args: argparse.Namespace) -> Measured | None:
    """Run one engine in a process of its own; None (and why, on stderr) if it fails."""
    command = [str(python), str(Path(__file__).with_name("rollout_engines.py")), engine]
    command += ["--dtype", dtype, "--threads", str(threads)]
    for name in ("model", "in_flight", "prompts", "group", "min_prompt", "max_prompt", "min_output", "max_output"):
        command += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    command += ["--seed", str(args.seed)]
    cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}

    def bind() -> None:
        if cores:
            os.sched_setaffinity(0, cores)

    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=args.time_limit,
            env=environment,
            preexec_fn=bind,
        )
    except subprocess.SubprocessError as error:
        print(f"    {engine} failed: {error}", file=sys.stderr, flush=True)
        return None
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def show(rows: Sequence[Measured]) -> None:
    """A table with each engine's rate, and its ratio to each reference that was measured."""
    references = [row for row in rows if row.name.startswith(REFERENCES)]
    heads = "".join(f"{'× ' + row.name.split(',')[0]:>18}" for row in references)
    print(f"  {'':32}{'seconds':>10}{'tokens/s':>10}{'CPU s':>8}{heads}")
    for row in rows:
        ratios = "".join(f"{row.rate / other.rate:18.2f}" for other in references)
        print(f"  {row.name:32}{row.seconds:10.1f}{row.rate:10.1f}{row.cpu_seconds:8.1f}{ratios}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    args = parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        args.model = model_of(args, Path(folder))
        results = measure_all(args)
    if args.json:
        print(json.dumps(results))
    return 0 if results else 1


def measure_all(args: argparse.Namespace) -> list[dict[str, object]]:
    """Every engine at every dtype and thread count; prints a table for each of those unless JSON is wanted."""
    pythons = {engine: interpreter_of(engine, args) for engine in args.engines}
    for engine in (engine for engine, python in pythons.items() if python is None):
        print(f"{engine} is not installed (make install-engines): left out", file=sys.stderr)
    results: list[dict[str, object]] = []
    for dtype in args.dtypes:
        for threads in args.threads:
            title = f"{dtype}, {threads} thread{'s' if threads > 1 else ''}"
            rows: list[Measured] = []
            for engine, python in pythons.items():
                if python is not None:
                    print(f"{title}: {engine}", file=sys.stderr, flush=True)
                    found = measure(engine, python, dtype, threads, args)
                    rows += [found] if found is not None else []
            results += [asdict(row) | {"tokens_per_s": row.rate, "dtype": dtype, "threads": threads} for row in rows]
            if not args.json:
                print(
                    f"{title}: {args.prompts} prompts of {args.min_prompt}–{args.max_prompt} tokens × {args.group}, "
                    f"outputs of {args.min_output}–{args.max_output}, {args.in_flight} in flight"
                )
                show(rows)
    return results


if __name__ == "__main__":
    sys.exit(main())
