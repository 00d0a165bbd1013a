"""A graph in the making: values are names, operations are calls, weights come from a mapping of arrays by name.

    g = Graph(weights)
    x = g.input("features", "float32", ["images", "regions", 2048])
    g.output("embedded", g.linear(x, "encoder.embed", 2048, 1024), "float32", ["images", "regions", 1024])
    content = g.model("encoder", {"xlan.format": "1"})

All arithmetic is float32. `precision` says how weights are stored: `stored` (as the file has them: nothing is copied),
`float32`, `float16` or `int8` (the large matrices in blocks of 8 bits, see `quantise`; activations are quantised row by
row as they come, so that what a row gives does not depend on its neighbours in the batch). Behind float16 stands a
cast, which a runtime does once, when it loads the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from xlan.errors import ModelError, WeightsError
from xlan.export import proto
from xlan.export.proto import Array, Attribute
from xlan.export.quantise import BLOCK, LEAST_QUANTISED, quantise_blocks
from xlan.weights import quantise_rows

Precision = Literal["stored", "float32", "float16", "int8"]
EPSILON = 1e-5  # of every norm
EMBEDDED_BYTES = 1024  # larger tensors can be handed over beside the graph


class Graph:
    """Nodes, weights, inputs and outputs.

    Args:
        weights: arrays by the names of the model's `state_dict`.
        precision: how they are stored.
        source: names them in error messages.
    """

    def __init__(self, weights: Mapping[str, Array], *, precision: Precision = "float32", source: str = "") -> None:
        self.precision = precision
        self.used: set[str] = set()
        """Names of weights that some operation reads."""
        self._weights = weights
        self._source = source
        self._nodes: list[bytes] = []
        self._tensors: dict[str, Array] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._inputs: list[bytes] = []
        self._outputs: list[bytes] = []

    # Borders

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        """An input; a dimension is a size, or a name where any size will do."""
        self._inputs.append(proto.value(name, dtype, shape))
        return name

    def output(self, name: str, value: str, dtype: str, shape: Sequence[int | str]) -> None:
        """Give `value` out under `name`."""
        self._nodes.append(proto.node("Identity", [value], [name], {}))
        self._outputs.append(proto.value(name, dtype, shape))

    def model(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """The whole graph with its weights: the bytes of a `.onnx` file."""
        return self._model(name, metadata, [proto.tensor(key, array) for key, array in self._tensors.items()])

    def model_and_weights(self, name: str, metadata: Mapping[str, str]) -> tuple[bytes, dict[str, Array]]:
        """The graph without its large weights, and these by name: to be handed over in memory."""
        beside = {key: array for key, array in self._tensors.items() if array.nbytes > EMBEDDED_BYTES}
        tensors = [proto.tensor(key, array, external=key in beside) for key, array in self._tensors.items()]
        return self._model(name, metadata, tensors), beside

    def _model(self, name: str, metadata: Mapping[str, str], initializers: Iterable[bytes]) -> bytes:
        return proto.model(
            name,
            nodes=self._nodes,
            initializers=initializers,
            inputs=self._inputs,
            outputs=self._outputs,
            metadata=metadata,
        )

    # Operations

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        """One operation with one result."""
        return self.ops(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Attribute) -> list[str]:
        """One operation with several results."""
        names = [f"{kind.lower()}_{len(self._nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self._nodes.append(proto.node(kind, inputs, names, attributes, domain))
        return names

    def constant(self, array: Array) -> str:
        """A value written into the graph; equal ones are written once."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = name
            self._tensors[name] = array
        return self._constants[key]

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(np.array(value, np.float32))

    def ints(self, *values: int) -> str:
        """An int64 vector."""
        return self.constant(np.array(values, np.int64))

    def add(self, a: str, b: str) -> str:
        """`a + b`, broadcast."""
        return self.op("Add", a, b)

    def mul(self, a: str, b: str) -> str:
        """`a * b`, broadcast."""
        return self.op("Mul", a, b)

    def concat(self, *values: str, axis: int = -1) -> str:
        """Values side by side."""
        return self.op("Concat", *values, axis=axis)

    def split(self, value: str, parts: int) -> list[str]:
        """`parts` equal parts of the last dimension."""
        return self.ops("Split", value, outputs=parts, axis=-1, num_outputs=parts)

    def reshape(self, value: str, *shape: int) -> str:
        """0 keeps a dimension, -1 takes what is left."""
        return self.op("Reshape", value, self.ints(*shape))

    def reshape_like(self, value: str, first: str, *rest: int) -> str:
        """Reshape to the first dimension of `first`, then `rest`."""
        size = self.op("Shape", first, start=0, end=1)
        return self.op("Reshape", value, self.op("Concat", size, self.ints(*rest), axis=0))

    def transpose(self, value: str, *order: int) -> str:
        """Dimensions in another order."""
        return self.op("Transpose", value, perm=order)

    def unsqueeze(self, value: str, *axes: int) -> str:
        """New dimensions of size 1."""
        return self.op("Unsqueeze", value, self.ints(*axes))

    def squeeze(self, value: str, *axes: int) -> str:
        """Without dimensions of size 1."""
        return self.op("Squeeze", value, self.ints(*axes))

    def mean(self, value: str, axis: int) -> str:
        """Mean over one dimension, which disappears."""
        return self.op("ReduceMean", value, self.ints(axis), keepdims=0)

    # Weights

    def array(self, name: str, *shape: int) -> Array:
        """A weight, float32 unless graphs keep what is stored.

        Raises:
            WeightsError: there is none of that name, or it has another shape.
        """
        if name not in self._weights:
            raise WeightsError(f"{self._source}: does not fit the architecture; missing: {name}")
        self.used.add(name)
        array = self._weights[name]
        if array.shape != shape:
            raise WeightsError(
                f"{self._source}: does not fit the architecture; {name} has shape {list(array.shape)} "
                f"instead of {list(shape)}"
            )
        return array if self.precision == "stored" else array.astype(np.float32)

    def tensor(self, name: str, array: Array) -> str:
        """A tensor of weights, float32 behind its cast (8 bits are for matrices only, see `multiply`)."""
        if self.precision == "float16" and array.size > 1:
            array = self._halved(name, array)
        value = self._store(name, array)
        return value if array.dtype == np.float32 else self.op("Cast", value, to=proto.DTYPES["float32"])

    def _halved(self, name: str, array: Array) -> Array:
        if np.abs(array).max(initial=0) > np.finfo(np.float16).max:
            raise ModelError(f"{self._source}: {name} has values too large for float16; export it without --fp16")
        return array.astype(np.float16)

    def _store(self, name: str, array: Array) -> str:
        self._tensors[name] = np.ascontiguousarray(array)
        return name

    def vector(self, name: str, *shape: int, view: tuple[int, ...] | None = None) -> str:
        """A bias or scale of `shape`, seen as `view`."""
        array = self.array(name, *shape)
        return self.tensor(name, array if view is None else array.reshape(view))

    def multiply(self, x: str, name: str, weight: Array) -> str:
        """`x W^T` for `x` `[..., in]` and an array `[out, in]`."""
        outside, inside = weight.shape
        if self.precision == "stored":  # the runtime turns it while it packs it: no copy in between
            return self.op("FusedMatMul", x, self.tensor(name, weight), domain="com.microsoft", transB=1)
        if self.precision != "int8" or weight.size < LEAST_QUANTISED:
            return self.op("MatMul", x, self.tensor(f"{name}.t", weight.T))
        values, scales = quantise_blocks(weight)
        return self.op(
            "MatMulNBits",
            x,
            self._store(f"{name}.blocks", values),
            self._store(f"{name}.scales", scales),
            domain="com.microsoft",
            K=inside,
            N=outside,
            bits=8,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def linear(self, x: str, name: str, inside: int, outside: int, *, bias: bool = True) -> str:
        """`x W^T + b` for `x` `[..., inside]`; `name` is that of the layer."""
        y = self.multiply(x, name, self.array(f"{name}.weight", outside, inside))
        return self.add(y, self.vector(f"{name}.bias", outside)) if bias else y

    def embed(self, ids: str, name: str, size: int, width: int) -> str:
        """Rows `ids` of an embedding `[size, width]`."""
        table = self.array(f"{name}.weight", size, width)
        if self.precision == "int8":
            values, scales = quantise_rows(table)
            rows = self.op("Gather", self._store(f"{name}.rows", values), ids, axis=0)
            rows = self.op("Cast", rows, to=proto.DTYPES["float32"])
            return self.mul(rows, self.op("Gather", self._store(f"{name}.scales", scales), ids, axis=0))
        if self.precision == "float16":
            table = self._halved(name, table)
        rows = self.op("Gather", self._store(f"{name}.rows", table), ids, axis=0)
        # Cast the rows, not the table.
        return rows if table.dtype == np.float32 else self.op("Cast", rows, to=proto.DTYPES["float32"])

    def glu(self, x: str) -> str:
        """`a σ(b)` for the halves a and b of the last dimension."""
        content, gate = self.split(x, 2)
        return self.mul(content, self.op("Sigmoid", gate))

    def layer_norm(self, x: str, name: str, width: int) -> str:
        """LayerNorm over the last dimension."""
        scale, shift = self.vector(f"{name}.weight", width), self.vector(f"{name}.bias", width)
        return self.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=EPSILON)

    def head_norm(self, x: str, name: str, heads: int, width: int) -> str:
        """GroupNorm with a group per head of `x` `[..., heads, width]`."""
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        y = self.op("LayerNormalization", x, self.constant(ones), self.constant(zeros), axis=-1, epsilon=EPSILON)
        shape = (heads, width)
        y = self.mul(y, self.vector(f"{name}.weight", heads * width, view=shape))
        return self.add(y, self.vector(f"{name}.bias", heads * width, view=shape))
