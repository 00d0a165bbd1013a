"""What the encoder's and the decoder's graphs look like from outside, the same for every architecture.

    encoder   features [images, regions, D], mask [images, regions]    →  memory.* [images, …]
    decoder   tokens [rows], memory.* [images, …], state.* [rows, …]   →  log_probs [rows, V], next.* [rows, …],
                                                                          spatial [rows, regions] (where it looked),
                                                                          channel [rows, C] (where there is a gate)

A row is one sentence. Rows come in equal numbers per image, in the order of the images: row r is about image
r // (rows / images). `memory.*` is what the encoder knows of an image, keys and values projected; `state.*` is what the
decoder remembers of a sentence, and `next.*` of the same name is what to give it in the next step. A state is all zeros
before the first word; a dimension called `words` begins with 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from xlan.export.attention import Found, Mask
from xlan.export.graph import Graph

IMAGES, REGIONS, ROWS, WORDS = "images", "regions", "rows", "words"
MEMORY, STATE, NEXT = "memory.", "state.", "next."

Shape = Sequence[int | str]


@dataclass(frozen=True)
class Recipe:
    """How an architecture becomes two graphs.

    Attributes:
        encoder: writes the encoder's operations.
        decoder: writes those of one step.
    """

    encoder: Callable[[Graph], None]
    decoder: Callable[[Graph], None]


def encoder_inputs(g: Graph, feature_dim: int) -> tuple[str, Mask]:
    """Features with zeros where no region exists, and the mask; the mask is also written to memory."""
    features = g.input("features", "float32", [IMAGES, REGIONS, feature_dim])
    exists = g.input("mask", "bool", [IMAGES, REGIONS])
    features = g.op("Where", g.unsqueeze(exists, 2), features, g.number(0.0))
    bias = g.op("Where", exists, g.number(0.0), g.constant(np.array(-np.inf, np.float32)))
    counted = g.op("Cast", exists, to=1)
    mean = g.op("Div", counted, g.op("ReduceSum", counted, g.ints(1), keepdims=1))
    mask = Mask(g.unsqueeze(bias, 1, 2), g.unsqueeze(mean, 1, 2))
    remember(g, "bias", mask.bias, [1, 1, REGIONS])
    remember(g, "mean", mask.mean, [1, 1, REGIONS])
    return features, mask


def masked_mean(g: Graph, regions: str, mask: Mask) -> str:
    """`[B, N, D]` → `[B, D]`, over the regions that exist."""
    return g.squeeze(g.op("MatMul", g.squeeze(mask.mean, 1), regions), 1)


def remember(g: Graph, name: str, value: str, shape: Shape) -> None:
    """Give out something the encoder knows of each image; `shape` is that of one image."""
    g.output(f"{MEMORY}{name}", value, "float32", [IMAGES, *shape])


def recall(g: Graph, name: str, shape: Shape) -> str:
    """The same, coming into the decoder."""
    return g.input(f"{MEMORY}{name}", "float32", [IMAGES, *shape])


def recall_mask(g: Graph) -> Mask:
    """The mask, coming into the decoder."""
    return Mask(recall(g, "bias", [1, 1, REGIONS]), recall(g, "mean", [1, 1, REGIONS]))


def state(g: Graph, name: str, shape: Shape) -> str:
    """Something the decoder remembers of each row; `shape` is that of one row."""
    return g.input(f"{STATE}{name}", "float32", [ROWS, *shape])


def next_state(g: Graph, name: str, value: str, shape: Shape) -> None:
    """What `state` of that name will be in the next step; where `words` grew, the dimension has another name."""
    grown = ["words + 1" if size == WORDS else size for size in shape]
    g.output(f"{NEXT}{name}", value, "float32", [ROWS, *grown])


def per_image(g: Graph, rows: str, memory: str, width: int) -> str:
    """Rows `[R, D]` → `[B, K, D]`, with B from something of the memory."""
    return g.reshape_like(rows, memory, -1, width)


def per_row(g: Graph, grid: str, width: int) -> str:
    """`[B, K, D]` → rows `[R, D]`."""
    return g.reshape(grid, -1, width)


def decoder_outputs(g: Graph, logits: str, vocab_size: int, found: Found | None, channels: int = 0) -> None:
    """Give out log-probabilities of logits `[R, V]` and, row by row, where the model looked."""
    g.output("log_probs", g.op("LogSoftmax", logits, axis=-1), "float32", [ROWS, vocab_size])
    if found is None:
        return
    regions = g.op("Shape", found.spatial, start=2)
    shape = g.op("Concat", g.ints(-1), regions, axis=0)
    g.output("spatial", g.op("Reshape", found.spatial, shape), "float32", [ROWS, REGIONS])
    if found.channel is not None:
        g.output("channel", per_row(g, found.channel, channels), "float32", [ROWS, channels])
