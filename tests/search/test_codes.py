from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xlan.engines.interface import Encoding
from xlan.search.codes import from_codes, join_texts, pack, split_texts, to_codes, unpack

NUMBERS = st.floats(-100, 100, width=32)


@settings(max_examples=40, deadline=None)
@given(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=3, max_side=5), elements=NUMBERS),
    arrays.arrays(np.float32, st.integers(1, 6), elements=NUMBERS),
)
def test_an_encoding_comes_back_within_a_step(rows: np.ndarray, single: np.ndarray) -> None:
    found = unpack(pack(Encoding({"b": single, "a": rows}, 7)), ["a", "b"])
    assert len(found) == 7
    spread = rows.max(axis=-1, keepdims=True) - rows.min(axis=-1, keepdims=True)
    assert (np.abs(found.arrays["a"] - rows) <= spread / 255 + 0.13).all()  # and what float16 loses
    np.testing.assert_allclose(found.arrays["b"], single, rtol=1e-3, atol=1e-6)


def test_a_damaged_record_is_refused() -> None:
    record = pack(Encoding({"a": np.ones((2, 3), np.float32)}, 2))
    for wrong in (
        record[:-1],
        record[:6],
        record[:0],
        np.zeros(len(record), np.uint8),
        np.full(len(record), 255, "u1"),
    ):
        with pytest.raises(ValueError, match=r"invalid shapes|does not match"):
            unpack(wrong, ["a"])


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite or too large"):
        pack(Encoding({"a": np.array([1e9], np.float32)}, 1))


@settings(deadline=None)
@given(st.lists(st.floats(-20, 10, width=32)))
def test_log_odds_are_off_by_half_a_step(values: list[float]) -> None:
    expected = np.clip(np.array(values, np.float32), -12, 255 / 16 - 12)
    np.testing.assert_allclose(from_codes(to_codes(values)), expected, atol=1 / 32 + 1e-5)


@settings(deadline=None)
@given(st.lists(st.binary().map(lambda text: text.replace(b"\n", b"")), min_size=1))
def test_texts_come_back(texts: list[bytes]) -> None:
    assert split_texts(join_texts(texts, b"\n"), b"\n", len(texts)) == texts
    with pytest.raises(ValueError, match="expected"):
        split_texts(join_texts(texts, b"\n"), b"\n", len(texts) + 1)
