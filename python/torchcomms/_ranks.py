"""Rank and number of ranks of this process, from the variables its launcher set.

Reads the environment alone; must not know torch, stores or the engine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

METHOD_VARIABLE = "TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD"


class _Pair(NamedTuple):
    rank: str
    size: str


class RankSize(NamedTuple):
    """Position of this process: `0 <= rank < size`."""

    rank: int
    size: int


# torch sets this pair around its own calls; a user may, to overrule the launcher.
_OWN = _Pair("TORCHCOMM_RANK", "TORCHCOMM_SIZE")
_TORCHRUN = _Pair("RANK", "WORLD_SIZE")
_OPEN_MPI = _Pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
_PMI = _Pair("PMI_RANK", "PMI_SIZE")
# PALS names the rank itself and leaves the size to PMI.
_PALS = _Pair("PALS_RANKID", "PMI_SIZE")

_METHODS = {
    "auto": (_TORCHRUN, _OPEN_MPI, _PMI, _PALS),
    "torchrun": (_TORCHRUN,),
    "mpi": (_OPEN_MPI, _PMI),
    "pals": (_PALS, _PMI),
}


def rank_and_size(environ: Mapping[str, str] | None = None) -> RankSize:
    """Rank and size of this process.

    TORCHCOMM_RANK and TORCHCOMM_SIZE first; else the launcher's pair, by the method named in
    TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD (`auto`, `torchrun`, `mpi` or `pals`).

    Raises:
        ValueError: a variable is missing or its value is wrong; the message names both.
    """
    env = os.environ if environ is None else environ
    if _OWN.rank in env or _OWN.size in env:
        return _read(env, _OWN)
    method = env.get(METHOD_VARIABLE, "auto").lower()
    pairs = _METHODS.get(method)
    if pairs is None:
        raise ValueError(
            f"{METHOD_VARIABLE}={env[METHOD_VARIABLE]!r} is not one of {', '.join(_METHODS)}"
        )
    # The first launcher with any of its two variables set is the one that started us; a lone
    # variable is then an error of its own and not a reason to ask the next launcher.
    for pair in pairs:
        if pair.rank in env:
            return _read(env, pair)
    for pair in pairs:
        if pair.size in env:
            return _read(env, pair)
    wanted = "; ".join(f"{pair.rank} and {pair.size}" for pair in (_OWN, *pairs))
    raise ValueError(
        f"the rank of this process is not known: set one of these pairs: {wanted} "
        f"(method {method!r} of {METHOD_VARIABLE}); torchrun and mpirun set theirs"
    )


def _read(env: Mapping[str, str], pair: _Pair) -> RankSize:
    rank = integer(env, pair.rank, minimum=0)
    size = integer(env, pair.size, minimum=1)
    if rank >= size:
        raise ValueError(
            f"{pair.rank}={rank} is out of range for {pair.size}={size}: expected a rank from 0 "
            f"to {size - 1}"
        )
    return RankSize(rank, size)


def integer(
    env: Mapping[str, str], variable: str, *, minimum: int, maximum: int = 2**31 - 1
) -> int:
    """Value of an integer variable within bounds.

    Raises:
        ValueError: missing, not a number or out of bounds; the message names variable and value.
    """
    text = env.get(variable)
    if text is None:
        raise ValueError(f"{variable} is not set: expected an integer of at least {minimum}")
    try:
        value = int(text)
    except ValueError:
        raise ValueError(
            f"{variable}={text!r} is not an integer: expected at least {minimum}"
        ) from None
    if not minimum <= value <= maximum:
        raise ValueError(f"{variable}={text!r} is out of range: expected {minimum} to {maximum}")
    return value
