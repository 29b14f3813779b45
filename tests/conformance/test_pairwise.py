"""The generator of cases covers every pair that any case can have; texts of cases read back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import product

import factors
import pairwise
import pytest

JOBS = [f"{ranks}/{transport}" for ranks in factors.RANKS for transport in factors.TRANSPORTS]


@pytest.mark.parametrize("seed", range(12))
def test_covers_what_the_full_product_holds(seed: int) -> None:
    chance = random.Random(seed)
    table = {
        f"f{n}": tuple(f"v{v}" for v in range(chance.randint(2, 5)))
        for n in range(chance.randint(2, 5))
    }
    names = list(table)
    banned = {pair for pair in pairwise.all_pairs(table) if chance.random() < 0.15}

    def fits(row: Mapping[str, str]) -> bool:
        ordered = [name for name in names if name in row]
        return not banned.intersection(pairwise.pairs_of(row, ordered))

    full = [dict(zip(names, values, strict=True)) for values in product(*table.values())]
    possible = {p for row in full if fits(row) for p in pairwise.pairs_of(row, names)}
    rows = pairwise.cover(table, fits, seed)
    assert all(fits(row) and list(row) == names for row in rows)
    assert {p for row in rows for p in pairwise.pairs_of(row, names)} == possible


def test_every_pair_of_the_suite_is_covered() -> None:
    table = factors.factors(JOBS)
    names = list(table)
    rows = pairwise.cover(table, factors.fits, 1)
    assert all(factors.fits(row) for row in rows)
    covered = {p for row in rows for p in pairwise.pairs_of(row, names)}
    chance = random.Random(7)
    # What is not covered must be impossible: no row of a large sample has it, and the rules say so.
    for row in pairwise.sample(table, factors.fits, 2000, chance):
        assert covered.issuperset(pairwise.pairs_of(row, names))
    for (a, x), (b, y) in set(pairwise.all_pairs(table)) - covered:
        operations = [
            name for name in factors.OPERATIONS if factors.fits({"operation": name, a: x, b: y})
        ]
        if a == "operation":
            operations = [name for name in operations if name == x]
        for name in operations:
            # every op and dtype that the operation may have clashes with the pair
            given = {"operation": name, a: x, b: y}
            for op, dtype in product(table["op"], table["dtype"]):
                assert not factors.fits({"op": op, "dtype": dtype, **given})
    assert len(rows) < 1200


def test_fewer_rows_than_values_multiplied() -> None:
    table = {name: tuple("abcde") for name in ("one", "two", "three", "four", "five")}
    rows = pairwise.cover(table, lambda _row: True, 3)
    assert 25 <= len(rows) <= 50


def test_cases_read_back() -> None:
    table = factors.factors(JOBS)
    for number, row in enumerate(pairwise.sample(table, factors.fits, 50, random.Random(2))):
        case = factors.Case(number, **row)
        assert factors.parse(str(case)) == case
    named = factors.Named(3, "program", "200", "4/tcp")
    assert factors.parse(str(named)) == named
    for wrong in ("", "1,all_reduce", str(case).replace(case.dtype, "float33")):
        with pytest.raises(ValueError, match=r"no case|none of"):
            factors.parse(wrong)
