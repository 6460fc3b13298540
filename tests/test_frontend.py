# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import onnx
import onnx.reference
import pytest
import tvm
from tvm import relax

from autotir_dlight.errors import MissingExtraError, ModelError
from autotir_dlight.frontend import TensorInfo, load_onnx, unsupported_operators

ADD = "g (float[N,3] x, float[3] b) => (float[N,3] y) { y = Add(x, b) }"
# Flattens all but the first axis by a shape that it computes from its input.
COMPUTED = """g (float[N,2,3] x) => (float[N,M] y) {
    s = Shape(x)
    zero = Constant<value = int64[1] {0}>()
    n = Gather(s, zero)
    rest = Constant<value = int64[1] {-1}>()
    to = Concat<axis = 0>(n, rest)
    r = Reshape(x, to)
    y = Relu(r)
}"""


def run(module, *arrays):
    executable = tvm.compile(module, "llvm")
    result = relax.VirtualMachine(executable, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays))
    return result.numpy()


def test_names_shapes_and_types(onnx_file):
    model = load_onnx(onnx_file(ADD), {"x": (2, 3)})
    assert model.inputs == (TensorInfo("x", (2, 3), "float32"), TensorInfo("b", (3,), "float32"))
    assert model.outputs == (TensorInfo("y", (2, 3), "float32"),)


def test_numbers(onnx_file):
    path = onnx_file(COMPUTED)
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype("float32")
    (want,) = onnx.reference.ReferenceEvaluator(str(path)).run(None, {"x": x})
    np.testing.assert_array_equal(run(load_onnx(path, {"x": x.shape}).module, x), want)


def test_open_dimension_stays_symbolic(onnx_file):
    model = load_onnx(onnx_file(ADD))
    assert model.inputs[0].shape == ("N", 3)
    assert not model.inputs[0].is_static
    assert model.outputs[0].shape == ("N", 3)
    x, b = np.ones((5, 3), "float32"), np.arange(3, dtype="float32")
    np.testing.assert_array_equal(run(model.module, x, b), x + b)


@pytest.mark.parametrize("dim", ["", "?"])
def test_unnamed_dimensions_are_different_ones(tmp_path, dim):
    value = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [dim or None, dim or None])
        for name in ("x", "y")
    ]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", value[:1], value[1:])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx")
    first, second = load_onnx(tmp_path / "m.onnx").inputs[0].shape
    assert first != second


@pytest.mark.parametrize("dtype", ["float16", "double", "int32", "int64", "uint8"])
def test_element_types_are_kept(onnx_file, dtype):
    model = load_onnx(onnx_file(f"g ({dtype}[4] x) => ({dtype}[4] y) {{ y = Add(x, x) }}"))
    wanted = {"double": "float64"}.get(dtype, dtype)
    assert model.inputs[0].dtype == model.outputs[0].dtype == wanted
    x = np.array([1, 2, 3, 4], wanted)
    np.testing.assert_array_equal(run(model.module, x), x + x)


def test_input_with_default_value_is_no_input(onnx_file):
    path = onnx_file("g (float[3] x, float[3] w = {1, 2, 3}) => (float[3] y) { y = Mul(x, w) }")
    assert [info.name for info in load_onnx(path).inputs] == ["x"]


def test_several_outputs(onnx_file):
    model = load_onnx(onnx_file("g (float[3] x) => (float[3] p, float[3] q) { p = Relu(x) q = Neg(x) }"))
    assert [info.name for info in model.outputs] == ["p", "q"]


def test_model_local_functions_are_inlined(onnx_file):
    function = '<domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }'
    path = onnx_file(
        "g (float[3] x) => (float[3] y) { y = local.twice(x) }",
        functions=function,
        domains=', "local" : 1',
    )
    x = np.array([1, 2, 3], "float32")
    np.testing.assert_array_equal(run(load_onnx(path).module, x), 2 * x)


def test_without_onnxsim_the_extra_is_named(onnx_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    path = onnx_file(COMPUTED)
    with pytest.raises(ModelError, match=r"autotir-dlight\[onnx\]"):
        load_onnx(path)


def test_without_onnx_the_extra_is_named(onnx_file, monkeypatch):
    path = onnx_file(ADD)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"'onnx': install it with .*autotir-dlight\[onnx\]"):
        load_onnx(path)


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        load_onnx(tmp_path / "nothing.onnx")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ModelError, match="there is no file"):
        load_onnx(tmp_path)


@pytest.mark.parametrize("data", [b"", b"hello, this is text", bytes(range(256)), b"\x08\x08"])
def test_not_onnx(tmp_path, data):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    with pytest.raises(ModelError, match="is not an ONNX file"):
        load_onnx(path)


def test_every_truncation_is_an_error_of_the_model(onnx_file):
    path = onnx_file(ADD)
    data = path.read_bytes()
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(ModelError):
            load_onnx(path)


def test_invalid_graph(onnx_file):
    path = onnx_file("g (float[3] x) => (float[3] y) { y = Relu(z) }")
    with pytest.raises(ModelError, match="is not a valid ONNX model"):
        load_onnx(path)


def test_missing_external_weights(tmp_path):
    weight = onnx.numpy_helper.from_array(np.ones(3, "float32"), "w")
    onnx.external_data_helper.set_external_data(weight, "weights.bin")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    path = tmp_path / "m.onnx"
    path.write_bytes(onnx.helper.make_model(graph).SerializeToString())
    with pytest.raises(ModelError, match=r"weights\.bin"):
        load_onnx(path)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (1, 3)}, r"has no input 'z'; its inputs are: x .*, b "),
        ({"x": (1, 3, 1)}, "has 3 dimensions instead of 2"),
        ({"x": (0, 3)}, "has 0 at axis 0"),
        ({"x": (-1, 3)}, "has -1 at axis 0"),
        ({"x": (1, 4)}, "has 4 at axis 1, which the model fixes at 3"),
    ],
)
def test_shapes_that_do_not_fit(onnx_file, shapes, words):
    with pytest.raises(ModelError, match=words):
        load_onnx(onnx_file(ADD), shapes)


def test_shapes_that_contradict_each_other(onnx_file):
    path = onnx_file("g (float[M,K] a, float[L,N] b) => (float[M,N] c) { c = MatMul(a, b) }")
    with pytest.raises(ModelError, match="TVM cannot import"):
        load_onnx(path, {"a": (2, 3), "b": (4, 5)})


def test_unsupported_operators_are_all_named(onnx_file):
    path = onnx_file(
        """g (float[2,2] x, bool c) => (float y, float z) {
            y = Det(x)
            z = If(c) <then_branch = t () => (float p) { p = other.Mystery(x) },
                       else_branch = e () => (float q) { q = Det(x) }>
        }""",
        domains=', "other" : 1',
    )
    with pytest.raises(ModelError, match=r"does not support the operators Det, other::Mystery$"):
        load_onnx(path)


def test_operator_that_onnx_does_not_know_is_named(onnx_file):
    path = onnx_file("g (float[2] x) => (float[2] y) { y = Frobnicate(x) }")
    with pytest.raises(ModelError, match=r"does not support the operator Frobnicate$"):
        load_onnx(path)


def test_same_name_in_another_domain_is_not_the_standard_operator(onnx_file):
    path = onnx_file("g (float[2] x) => (float[2] y) { y = other.Relu(x) }", domains=', "other" : 1')
    assert unsupported_operators(onnx.load(path)) == ["other::Relu"]


def test_input_of_text(onnx_file):
    path = onnx_file("g (string[2] x) => (string[2] y) { y = Identity(x) }")
    with pytest.raises(ModelError, match="not a tensor of numbers"):
        load_onnx(path)
