"""Weights in 8 bits: blocks of a matrix, each with a scale of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xlan.export.proto import Array
from xlan.weights import Floats, quantise_rows

BLOCK = 64  # weights that share a scale; the scales then add 6 % to the 8 bits
LEAST_QUANTISED = 1 << 14  # smaller matrices save nothing and stay as they are
ZERO = 128  # what 0 is stored as, the operator's default


def quantise_blocks(weight: Array) -> tuple[npt.NDArray[np.uint8], Floats]:
    """A matrix `[out, in]` → `[out, blocks, BLOCK]` values around `ZERO` and `[out · blocks]` scales."""
    rows, columns = weight.shape
    padded = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
    padded[:, :columns] = weight
    values, scales = quantise_rows(padded.reshape(rows, -1, BLOCK))
    return (values.astype(np.int16) + ZERO).astype(np.uint8), scales.reshape(-1)
