"""Which numbers of ranks an attention layer can be divided by. Without torch: the configuration is checked with it."""

from __future__ import annotations

from math import gcd

from argosy.types.errors import InvalidInputError


def check_heads(heads: int, kv_heads: int, *, tensor_parallel: int = 1, sequence_parallel: int = 1) -> None:
    """Refuse numbers of ranks that attention can't be divided by. Raises InvalidInputError with the numbers.

    Tensor parallelism T gives each rank heads/T query heads and kv_heads/T key-value heads, so T divides both. Ulysses
    sequence parallelism S gives each of those S ranks 1/S of the query heads; key-value heads are repeated where needed
    (`kv_repeats`), so only the query heads count.

    >>> check_heads(9, 3, tensor_parallel=3, sequence_parallel=3)
    >>> check_heads(9, 3, tensor_parallel=2)
    Traceback (most recent call last):
    ...
    argosy.types.errors.InvalidInputError: tensor parallel size 2 doesn't divide the model's 9 attention heads; sizes \
that fit: 1, 3
    """
    for count, what in ((heads, "attention heads"), (kv_heads, "key-value heads")):
        if count % tensor_parallel:
            fit = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0 and kv_heads % size == 0)
            raise InvalidInputError(
                f"tensor parallel size {tensor_parallel} doesn't divide the model's {count} {what}; sizes that fit: "
                f"{fit}"
            )
    mine = heads // tensor_parallel
    if mine % sequence_parallel:
        fit = ", ".join(str(size) for size in range(1, mine + 1) if mine % size == 0)
        of = f" ÷ tensor parallel {tensor_parallel} = {mine}" if tensor_parallel > 1 else ""
        raise InvalidInputError(
            f"ulysses_sequence_parallel_size {sequence_parallel} doesn't divide the model's {heads} attention heads"
            f"{of}; sizes that fit: {fit}"
        )


def kv_repeats(kv_heads: int, sequence_parallel: int) -> int:
    """How often each key-value head is repeated so that the ranks divide them: S / gcd(K, S).

    It always divides the group size H/K where S divides H: S/gcd(K, S) has no factor in common with K/gcd(K, S).

    >>> kv_repeats(8, 4), kv_repeats(2, 8), kv_repeats(3, 2)
    (1, 4, 2)
    """
    return sequence_parallel // gcd(kv_heads, sequence_parallel)
