"""The suite notices what it is there for: results that did not come, wrong bits, stray writes."""

from __future__ import annotations

import calls
import elements
import factors
import numpy as np
import pytest
from buffers import Buffer


@pytest.mark.parametrize("operation", factors.OPERATIONS)
@pytest.mark.parametrize("layout", factors.LAYOUTS)
def test_a_call_that_moved_nothing(operation: str, layout: str) -> None:
    request = calls.Request(
        operation, "float32", 30, input_layout=layout, output_layout=layout, root="last"
    )
    # on rank 0 a reduce or gather to the last rank changes nothing, and on the root a broadcast
    rank = 2 if operation in ("reduce", "gather", "gather_single") else 0
    prepared = calls.prepare(request, calls.Place(rank, 3, True))
    with pytest.raises(elements.Difference, match=r"first at index"):
        prepared.check()


@pytest.mark.parametrize("dtype", factors.DTYPES)
@pytest.mark.parametrize("layout", factors.LAYOUTS)
def test_tensors_hold_what_was_laid_out(dtype: str, layout: str) -> None:
    for count in (0, 1, 30, 31):
        content = elements.draw(dtype, "special", 3, 1, 0, count)
        buffer = Buffer(content, dtype, layout)
        assert buffer.tensor.numel() == count
        assert np.array_equal(buffer.read(), content)
        buffer.check_guards("untouched")
        if count > 1 and layout == "odd":
            assert buffer.tensor.data_ptr() % 2 == 1
        if count > 1 and layout in ("strided", "transposed"):
            assert not buffer.tensor.is_contiguous()


@pytest.mark.parametrize("layout", ["plain", "strided"])
@pytest.mark.parametrize("where", [0, -1])
def test_a_write_beside_the_elements(layout: str, where: int) -> None:
    buffer = Buffer(elements.draw("int16", "usual", 3, 1, 0, 10), "int16", layout)
    buffer.check_guards("before")
    buffer._memory[where] ^= 1
    with pytest.raises(elements.Difference, match=r"memory (before|after) the elements"):
        buffer.check_guards("after")


def test_a_bit_that_is_wrong() -> None:
    inputs = [elements.draw("float32", "usual", 5, rank, 0, 100) for rank in range(4)]
    right = elements.reduced(inputs, "SUM", "float32")
    exact, close = (elements.Reduction(inputs, "SUM", "float32", e) for e in (True, False))
    elements.compare(right, exact, "right")
    last_bit = right.copy()
    last_bit[7, 0] ^= 1
    elements.compare(last_bit, close, "another order")
    with pytest.raises(elements.Difference, match=r"first at index 7: got .* expected .* from"):
        elements.compare(last_bit, exact, "rank order")
    exponent = right.copy()
    exponent[9, 3] ^= 1
    with pytest.raises(elements.Difference, match=r"first at index 9"):
        elements.compare(exponent, close, "far off")


def test_complex_factors_whose_order_decides() -> None:
    # The largest numbers in either component reach both components of a product.
    pairs = [(0.75, 1.42), (5e-324, 2.2e-308), (1.0, -1.02), (0.43, np.finfo(np.float64).max)]
    inputs = [np.array([pair]).view(np.uint8) for pair in pairs]
    close = elements.Reduction(inputs, "PRODUCT", "complex128", False)
    backward = elements.reduced(inputs[::-1], "PRODUCT", "complex128")
    assert not np.array_equal(backward, elements.reduced(inputs, "PRODUCT", "complex128"))
    elements.compare(backward, close, "another order")
    inputs[3] = np.array([(0.43, 2.0)]).view(np.uint8)
    with pytest.raises(elements.Difference, match=r"first at index 0"):
        elements.compare(backward, close, "no large numbers")
