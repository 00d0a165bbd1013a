"""Weights in 8 bits: blocks of a matrix, rows of an embedding, each with a scale of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from xlan.export.proto import Array

BLOCK = 64  # weights that share a scale; the scales then add 6 % to the 8 bits
LEAST_QUANTISED = 1 << 14  # smaller matrices save nothing and stay as they are
ZERO = 128  # what 0 is stored as, the operator's default
_LARGEST = 127.0

Floats = npt.NDArray[np.float32]


def quantise_blocks(weight: Array) -> tuple[npt.NDArray[np.uint8], Floats]:
    """A matrix `[out, in]` → `[out, blocks, BLOCK]` values around `ZERO` and `[out · blocks]` scales."""
    rows, columns = weight.shape
    padded = np.zeros((rows, -(-columns // BLOCK) * BLOCK), np.float32)
    padded[:, :columns] = weight
    blocks = padded.reshape(rows, -1, BLOCK)
    scales = _scales(blocks)
    return (_rounded(blocks, scales) + ZERO).astype(np.uint8), scales.reshape(-1)


def quantise_rows(table: Array) -> tuple[npt.NDArray[np.int8], Floats]:
    """An embedding `[size, width]` → values of the same shape and scales `[size, 1]`."""
    scales = _scales(table)
    return _rounded(table, scales).astype(np.int8), scales


def _scales(values: Array) -> Floats:
    largest = np.abs(values).max(axis=-1, keepdims=True) / _LARGEST
    return np.where(largest > 0, largest, 1.0).astype(np.float32)


def _rounded(values: Array, scales: Floats) -> Floats:
    return np.asarray(np.rint(values / scales), np.float32)
