"""Few rows that hold every pair of values of any two factors, as far as values go together.

Greedy: a row starts from a pair that no row has yet and takes, factor by factor, the value that
brings the most new pairs. Must not know what the factors mean.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

Row = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]
Fits = Callable[[Mapping[str, str]], bool]


def pairs_of(row: Mapping[str, str], order: Sequence[str]) -> list[Pair]:
    """The pairs that a row holds; factors in the order of `order`."""
    items = [(name, row[name]) for name in order]
    return list(combinations(items, 2))


def all_pairs(factors: Mapping[str, Sequence[str]]) -> list[Pair]:
    """Every pair of values of two different factors."""
    return [
        ((a, x), (b, y))
        for a, b in combinations(factors, 2)
        for x in factors[a]
        for y in factors[b]
    ]


def complete(
    start: Mapping[str, str],
    factors: Mapping[str, Sequence[str]],
    fits: Fits,
    rank: Callable[[str, Row], Sequence[str]],
) -> Row | None:
    """A full row that holds `start`, or None when there is none; goes back at dead ends.

    `rank` gives the values of a factor, the best first.
    """
    open_factors = [name for name in factors if name not in start]

    def extend(row: Row, position: int) -> Row | None:
        if position == len(open_factors):
            return row
        name = open_factors[position]
        for value in rank(name, row):
            longer = {**row, name: value}
            if fits(longer):
                found = extend(longer, position + 1)
                if found is not None:
                    return found
        return None

    return extend(dict(start), 0) if fits(start) else None


def cover(factors: Mapping[str, Sequence[str]], fits: Fits, seed: int) -> list[Row]:
    """Rows that together hold every pair that any row can hold.

    Factors that decide most about others should come first: they are chosen first.
    """
    chance = random.Random(seed)
    order = list(factors)
    place = {name: number for number, name in enumerate(order)}
    waiting = all_pairs(factors)
    chance.shuffle(waiting)
    missing = set(waiting)

    def gain(name: str, value: str, row: Row) -> int:
        count = 0
        for other, chosen in row.items():
            first, second = (other, chosen), (name, value)
            pair = (first, second) if place[other] < place[name] else (second, first)
            count += pair in missing
        return count

    def best_first(name: str, row: Row) -> Sequence[str]:
        values = list(factors[name])
        chance.shuffle(values)
        return sorted(values, key=lambda value: -gain(name, value, row))

    rows: list[Row] = []
    for pair in waiting:
        if pair not in missing:
            continue
        row = complete(dict(pair), factors, fits, best_first)
        if row is None:
            missing.discard(pair)
            continue
        row = {name: row[name] for name in order}
        rows.append(row)
        missing.difference_update(pairs_of(row, order))
    return rows


def sample(
    factors: Mapping[str, Sequence[str]], fits: Fits, count: int, chance: random.Random
) -> list[Row]:
    """Rows drawn from the full product, every value of a factor alike as far as others allow."""

    def any_first(name: str, _row: Row) -> Sequence[str]:
        values = list(factors[name])
        chance.shuffle(values)
        return values

    rows = []
    for _ in range(count):
        row = complete({}, factors, fits, any_first)
        if row is not None:
            rows.append({name: row[name] for name in factors})
    return rows
