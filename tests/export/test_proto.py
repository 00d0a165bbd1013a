"""What is written by hand is what the `onnx` package reads."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from xlan.export import proto


@given(
    arrays.arrays(
        dtype=st.sampled_from(sorted(proto.DTYPES)).map(np.dtype),
        shape=arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
    )
)
def test_tensors_come_back(array):
    read = onnx.TensorProto.FromString(proto.tensor("weights", array))
    assert read.name == "weights"
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(read), array)


def test_an_external_tensor_has_its_shape_and_no_values():
    read = onnx.TensorProto.FromString(proto.tensor("weights", np.zeros((300, 2), np.float16), external=True))
    assert (list(read.dims), read.data_type, read.raw_data) == ([300, 2], onnx.TensorProto.FLOAT16, b"")
    assert read.data_location == onnx.TensorProto.EXTERNAL
    assert {pair.key: pair.value for pair in read.external_data}["length"] == "1200"


whole = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(width=32, allow_nan=False)


@given(st.dictionaries(st.text(min_size=1), whole | floats | st.text() | st.lists(whole, min_size=1)))
def test_attributes_come_back(attributes):
    read = onnx.NodeProto.FromString(proto.node("Op", ["a", ""], ["b"], attributes, "com.example"))
    assert (read.op_type, list(read.input), list(read.output), read.domain) == ("Op", ["a", ""], ["b"], "com.example")
    got = {a.name: onnx.helper.get_attribute_value(a) for a in read.attribute}
    assert got == {name: value.encode() if isinstance(value, str) else value for name, value in attributes.items()}


@given(st.lists(st.integers(0, 2**40) | st.text(min_size=1)), st.sampled_from(sorted(proto.DTYPES)))
def test_shapes_come_back(shape, dtype):
    read = onnx.ValueInfoProto.FromString(proto.value("x", dtype, shape))
    dims = [d.dim_param or d.dim_value for d in read.type.tensor_type.shape.dim]
    assert (read.name, dims, read.type.tensor_type.elem_type) == ("x", shape, proto.DTYPES[dtype])


def test_a_model_passes_the_checker_and_keeps_its_metadata():
    add = proto.node("Add", ["x", "one"], ["y"], {})
    content = proto.model(
        "plus one",
        nodes=[add],
        initializers=[proto.tensor("one", np.ones(3, np.float32))],
        inputs=[proto.value("x", "float32", ["rows", 3])],
        outputs=[proto.value("y", "float32", ["rows", 3])],
        metadata={"xlan.format": "1"},
    )
    model = onnx.load_from_string(content)
    onnx.checker.check_model(model, full_check=True)
    assert {p.key: p.value for p in model.metadata_props} == {"xlan.format": "1"}
    assert {o.domain: o.version for o in model.opset_import} == {"": proto.OPSET, "com.microsoft": 1}


@pytest.mark.parametrize("name", sorted(proto.DTYPES))
def test_types_have_the_numbers_of_the_format(name):
    assert onnx.helper.tensor_dtype_to_np_dtype(proto.DTYPES[name]) == np.dtype(name)
