"""What a case is made of: the factors, their values, and which values go together.

Pure tables and rules. Must not know torch, processes or how a case is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

# Bytes per rank, and elements more or less. Borders of algorithms move: add a line when one does.
SIZES: dict[str, tuple[int, int]] = {
    "0": (0, 0),
    "1e": (0, 1),
    "8": (8, 0),
    "40-1e": (40, -1),
    "40": (40, 0),
    "40+1e": (40, 1),
    "64": (64, 0),
    "1K+1e": (1 << 10, 1),
    "4K-1e": (4 << 10, -1),
    "4K": (4 << 10, 0),
    "4K+1e": (4 << 10, 1),
    "16K-1e": (16 << 10, -1),
    "32K": (32 << 10, 0),
    "64K": (64 << 10, 0),
    "64K+1e": (64 << 10, 1),
    "256K": (256 << 10, 0),
    "512K-1e": (512 << 10, -1),
    "512K": (512 << 10, 0),
    "512K+1e": (512 << 10, 1),
    "1M": (1 << 20, 0),
    "4M+4": ((4 << 20) + 4, 0),
}
# So large that every part of a list being of this size would be too much for eight ranks.
_HUGE = ("1M", "4M+4")

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex32", "complex64", "complex128")
FLOAT8 = (
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)
DTYPES = (*INTEGERS, *FLOATS, "bool", *COMPLEX, *FLOAT8)
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")

LAYOUTS = ("plain", "offset", "odd", "strided", "transposed")
MODES = (
    "sync",
    "async",
    "polled",
    "in_flight",
    "reversed",
    "interleaved",
    "opposite",
    "threads",
    "halves",
    "mirrored",
)
RANKS = (1, 2, 3, 4, 5, 8)
TRANSPORTS = ("shm", "tcp")
# Stands for a factor that an operation does not have.
NONE = "-"


@dataclass(frozen=True)
class Traits:
    """Which factors an operation has."""

    reduces: bool = False
    rooted: bool = False
    parts: bool = False  # one part per rank, in a list or in one tensor
    uneven: bool = False  # the parts may differ in length
    shares: bool = False  # an own part may be the rank's other buffer
    two: bool = False  # inputs and outputs are different tensors


OPERATIONS: dict[str, Traits] = {
    "all_reduce": Traits(reduces=True),
    "reduce": Traits(reduces=True, rooted=True),
    "broadcast": Traits(rooted=True),
    "all_gather": Traits(parts=True, shares=True, two=True),
    "all_gather_v": Traits(parts=True, uneven=True, shares=True, two=True),
    "all_gather_single": Traits(parts=True, shares=True, two=True),
    "reduce_scatter": Traits(reduces=True, parts=True, shares=True, two=True),
    "reduce_scatter_v": Traits(reduces=True, parts=True, uneven=True, shares=True, two=True),
    "reduce_scatter_single": Traits(reduces=True, parts=True, shares=True, two=True),
    "all_to_all": Traits(parts=True, uneven=True, two=True),
    "all_to_all_single": Traits(parts=True, two=True),
    "all_to_all_v_single": Traits(parts=True, uneven=True, two=True),
    "gather": Traits(rooted=True, parts=True, shares=True, two=True),
    "gather_single": Traits(rooted=True, parts=True, shares=True, two=True),
    "scatter": Traits(rooted=True, parts=True, shares=True, two=True),
    "send_recv": Traits(two=True),
    "batch": Traits(parts=True, uneven=True, two=True),
}
REDUCING = tuple(name for name, traits in OPERATIONS.items() if traits.reduces)

# Which trait a factor hangs on.
_DEPENDENT = {
    "op": "reduces",
    "root": "rooted",
    "measure": "parts",
    "lengths": "uneven",
    "sharing": "shares",
    "output_layout": "two",
}


def supported(op: str, dtype: str) -> bool:
    """The table of docs/reductions.md, as a rule."""
    if dtype in FLOAT8:
        return False
    if dtype == "bool":
        return op not in ("AVG", "PREMUL_SUM")
    if dtype in INTEGERS:
        return op != "PREMUL_SUM"
    if dtype in COMPLEX:
        return op in ("SUM", "AVG", "PRODUCT", "PREMUL_SUM")
    return op not in ("BAND", "BOR", "BXOR")


def elements(size: str, width: int, ranks: int, measure: str) -> int:
    """Elements of one part: the size is that of a part, or of all parts together."""
    base, more = SIZES[size]
    count = max(0, -(-base // width) + more)
    return -(-count // ranks) if measure == "whole" else count


def factors(
    jobs: Iterable[str], operations: Iterable[str] = tuple(OPERATIONS)
) -> dict[str, tuple[str, ...]]:
    """Every factor with its values; a job is ranks and transport, like `4/shm`."""
    return {
        "operation": tuple(operations),
        "dtype": DTYPES,
        "op": (NONE, *OPS),
        "size": tuple(SIZES),
        "measure": (NONE, "part", "whole"),
        "input_layout": LAYOUTS,
        "output_layout": (NONE, *LAYOUTS),
        "sharing": (NONE, "apart", "shared"),
        "root": (NONE, "first", "middle", "last"),
        "lengths": (NONE, "even", "uneven", "gaps"),
        "mode": MODES,
        "delay": ("none", "jitter", "one_late"),
        "values": ("usual", "special"),
        "job": tuple(jobs),
    }


def fits(chosen: Mapping[str, str]) -> bool:
    """Whether the values chosen so far can stand together."""
    operation = chosen.get("operation")
    if operation is not None:
        traits = OPERATIONS[operation]
        for factor, trait in _DEPENDENT.items():
            if factor in chosen and (chosen[factor] != NONE) != getattr(traits, trait):
                return False
        if traits.reduces and chosen.get("dtype") in FLOAT8:
            return False
    op, dtype = chosen.get("op", NONE), chosen.get("dtype")
    if op != NONE and dtype is not None and not supported(op, dtype):
        return False
    return not (chosen.get("size") in _HUGE and chosen.get("measure") == "part")


@dataclass(frozen=True)
class Case:
    """One operation with a value for every factor. Its text is `seed,operation,…,job`."""

    seed: int
    operation: str
    dtype: str
    op: str
    size: str
    measure: str
    input_layout: str
    output_layout: str
    sharing: str
    root: str
    lengths: str
    mode: str
    delay: str
    values: str
    job: str

    def __str__(self) -> str:
        return ",".join(str(getattr(self, field.name)) for field in fields(self))

    def described(self) -> str:
        """The factors by name."""
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return " ".join(f"{name}={value}" for name, value in pairs if value != NONE)


@dataclass(frozen=True)
class Named:
    """A corner case or a random program: its kind, its name and the job. `seed,kind:name,job`."""

    seed: int
    kind: str
    name: str
    job: str

    def __str__(self) -> str:
        return f"{self.seed},{self.kind}:{self.name},{self.job}"

    def described(self) -> str:
        return f"seed={self.seed} {self.kind}={self.name} job={self.job}"


def parse(text: str) -> Case | Named:
    """The case of a text.

    Raises:
        ValueError: it is not one.
    """
    parts = text.split(",")
    if len(parts) == 3 and ":" in parts[1]:
        kind, name = parts[1].split(":", 1)
        return Named(int(parts[0]), kind, name, parts[2])
    known = [field.name for field in fields(Case)]
    if len(parts) != len(known):
        raise ValueError(f"{text!r} is no case: expected {','.join(known)} or seed,kind:name,job")
    values = dict(zip(known[1:], parts[1:], strict=True))
    for name, allowed in factors([values["job"]]).items():
        if values[name] not in allowed:
            raise ValueError(f"{name} {values[name]!r} is none of {', '.join(allowed)}")
    if not fits(values):
        raise ValueError(f"{text!r}: these values do not go together")
    return Case(int(parts[0]), **values)


def ranks_of(job: str) -> int:
    return int(job.split("/")[0])


def transport_of(job: str) -> str:
    return job.split("/")[1]
