# SPDX-License-Identifier: Apache-2.0
"""TVM's list of operators (``te_workload``) as PyTorch, ONNX and NumPy say them.

TVM's convolutions are channels-last with the weights' output channels last. PyTorch gets the same order
(``channels_last``, weights converted beforehand), ONNX Runtime its own, and neither pays for the way there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from .operators import Arrays, Operator, Tensor

# How far a sum of millions may be off that is added one by one, as ONNX Runtime and plain TVM do.
_SERIAL_SUM = 2e-3
NAMES = "C1D C2D C3D CAP DEP DIL GMM GRP T2D NRM SFM CBR TBG".split()


def operators() -> Iterator[Operator]:
    """All of them, ``C1D-0`` to ``TBG-3``."""
    from tvm.s_tir.meta_schedule.testing import te_workload

    for name in NAMES:
        for index, sizes in enumerate(te_workload.CONFIGS[name][1]):
            make = partial(te_workload.create_te_workload, name, index)
            yield _MAKERS[name](f"{name}-{index}", make, *sizes)


def _channels_first(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, -1, 1)


def _channels_last(array: np.ndarray) -> np.ndarray:
    return np.moveaxis(array, 1, -1)


def _weights_first(array: np.ndarray) -> np.ndarray:
    """Window, in, out to out, in, window; in memory the channels stay last, as those of the input do."""
    return _channels_first(np.ascontiguousarray(np.moveaxis(array, -1, 0)))


def _prepare_conv(arrays: Arrays) -> Arrays:
    return [_channels_first(arrays[0]), _weights_first(arrays[1]), *arrays[2:]]


def _window(dims: int, size: int, stride: int, padding: int, dilation: int, groups: int) -> str:
    def each(value: int, times: int = dims) -> str:
        return "[" + ", ".join([str(value)] * times) + "]"

    return (
        f"<group = {groups}, kernel_shape = {each(size)}, strides = {each(stride)}, "
        f"dilations = {each(dilation)}, pads = {each(padding, 2 * dims)}>"
    )


def _extent(size: int, window: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (window - 1) - 1) // stride + 1


def _torch_conv(dims: int, **options: int) -> Callable[..., Any]:
    def run(torch: Any, x: Any, w: Any) -> Any:
        return getattr(torch.nn.functional, f"conv{dims}d")(x, w, **options)

    def run_line(torch: Any, x: Any, w: Any) -> Any:
        """As an image one row high, of which PyTorch knows channels-last: up to twice as fast."""
        image, window = (t.unsqueeze(2).contiguous(memory_format=torch.channels_last) for t in (x, w))
        steps = {"stride": 1, "padding": 0, "dilation": 1}
        pairs = {name: (steps[name], value) if name in steps else value for name, value in options.items()}
        return torch.nn.functional.conv2d(image, window, **pairs).squeeze(2)

    return run_line if dims == 1 else run


def _conv(name: str, tir: Callable[[], Any], dims: int, *sizes: int) -> Operator:
    """``sizes``: batch, the extents, channels in and out, window, stride, padding, dilation, groups."""
    batch, extents, (ci, co, window) = sizes[0], sizes[1 : 1 + dims], sizes[1 + dims : 4 + dims]
    stride, padding, dilation, groups = (*sizes[4 + dims :], *(1, 0, 1, 1)[len(sizes) - 4 - dims :])
    out = tuple(_extent(extent, window, stride, padding, dilation) for extent in extents)
    weights = (*[window] * dims, ci // groups, co)
    return Operator(
        name,
        (Tensor((batch, *extents, ci)), Tensor(weights)),
        Tensor((batch, *out, co)),
        tir,
        flops=2.0 * batch * math.prod(out) * math.prod(weights),
        torch=_torch_conv(dims, stride=stride, padding=padding, dilation=dilation, groups=groups),
        onnx=f"y = Conv{_window(dims, window, stride, padding, dilation, groups)}(a0, a1)",
        prepare=_prepare_conv,
        restore=_channels_last,
    )


def _depthwise(name: str, tir: Callable[[], Any], *sizes: int) -> Operator:
    batch, height, width, channels, window, stride, padding = sizes
    out = (batch, *(_extent(n, window, stride, padding, 1) for n in (height, width)), channels)
    return Operator(
        name,
        (Tensor((batch, height, width, channels)), Tensor((1, window, window, channels))),
        Tensor(out),
        tir,
        flops=2.0 * math.prod(out) * window**2,
        torch=_torch_conv(2, stride=stride, padding=padding, groups=channels),
        onnx=f"y = Conv{_window(2, window, stride, padding, 1, channels)}(a0, a1)",
        prepare=lambda arrays: [_channels_first(arrays[0]), arrays[1].transpose(3, 0, 1, 2)],
        restore=_channels_last,
    )


def _transposed(name: str, tir: Callable[[], Any], *sizes: int) -> Operator:
    batch, height, width, ci, co, window, stride, padding = sizes
    out = (batch, *((n - 1) * stride - 2 * padding + window for n in (height, width)), co)

    def torch_form(torch: Any, x: Any, w: Any) -> Any:
        return torch.nn.functional.conv_transpose2d(x, w, stride=stride, padding=padding)

    return Operator(
        name,
        (Tensor((batch, height, width, ci)), Tensor((window, window, ci, co))),
        Tensor(out),
        tir,
        flops=2.0 * batch * height * width * ci * co * window**2,
        torch=torch_form,
        onnx=f"y = ConvTranspose{_window(2, window, stride, padding, 1, 1)}(a0, a1)",
        prepare=lambda arrays: [_channels_first(arrays[0]), arrays[1].transpose(2, 3, 0, 1)],
        restore=_channels_last,
    )


def _capsule(name: str, tir: Callable[[], Any], *sizes: int) -> Operator:
    """A convolution over 4 × 4 matrices: their rows are a batch, their columns are channels."""
    batch, height, width, ci, co, window, stride, padding = sizes
    side = 4
    rows, columns = (_extent(n, window, stride, padding, 1) for n in (height, width))
    out = (batch, rows, columns, side, side, co)

    def prepare(arrays: Arrays) -> Arrays:
        x, w = arrays
        images = x.transpose(0, 3, 4, 5, 1, 2).reshape(batch * side, side * ci, height, width)
        return [images, w.transpose(3, 5, 2, 4, 0, 1).reshape(side * co, side * ci, window, window)]

    return Operator(
        name,
        (Tensor((batch, height, width, side, side, ci)), Tensor((window, window, side, side, ci, co))),
        Tensor(out),
        tir,
        flops=2.0 * math.prod(out) * window**2 * side * ci,
        torch=_torch_conv(2, stride=stride, padding=padding),
        onnx=f"y = Conv{_window(2, window, stride, padding, 1, 1)}(a0, a1)",
        prepare=prepare,
        restore=lambda y: y.reshape(batch, side, side, co, rows, columns).transpose(0, 4, 5, 1, 2, 3),
    )


def _scaled_conv(name: str, tir: Callable[[], Any], *sizes: int) -> Operator:
    """Convolution, bias, scale, offset, ReLU; the function takes the offset before the scale."""
    plain = _conv(name, tir, 2, *sizes)
    channel = Tensor((plain.output.shape[-1],))
    stride, padding = sizes[6:8]

    def torch_form(torch: Any, x: Any, w: Any, bias: Any, offset: Any, scale: Any) -> Any:
        y = torch.nn.functional.conv2d(x, w, bias, stride=stride, padding=padding)
        return torch.addcmul(offset, y, scale).relu_()

    def prepare(arrays: Arrays) -> Arrays:
        return [*_prepare_conv(arrays[:3]), *(a.reshape(-1, 1, 1) for a in arrays[3:])]

    conv = plain.onnx.replace("y = ", "c = ").replace("(a0, a1)", "(a0, a1, a2)")
    return Operator(
        name,
        (*plain.inputs, channel, channel, channel),
        plain.output,
        tir,
        flops=plain.flops,
        torch=torch_form,
        onnx=f"{conv} m = Mul(c, a4) s = Add(m, a3) y = Relu(s)",
        prepare=prepare,
        restore=_channels_last,
    )


def _batched(name: str, tir: Callable[[], Any], batch: int, n: int, m: int, k: int) -> Operator:
    return Operator(
        name,
        (Tensor((batch, n, k)), Tensor((batch, k, m))),
        Tensor((batch, n, m)),
        tir,
        flops=2.0 * batch * n * m * k,
        numpy=np.matmul,
        torch=lambda torch, a, b: torch.bmm(a, b),
        onnx="y = MatMul(a0, a1)",
    )


def _norm(name: str, tir: Callable[[], Any], batch: int, m: int, n: int) -> Operator:
    return Operator(
        name,
        (Tensor((batch, m, n)),),
        Tensor((batch,)),
        tir,
        flops=2.0 * batch * m * n,
        tolerance=_SERIAL_SUM,
        numpy=lambda a: np.sqrt(np.einsum("bij,bij->b", a, a, optimize=True)),
        torch=lambda torch, a: torch.linalg.vector_norm(a, dim=(1, 2)),
        onnx="y = ReduceL2<axes = [1, 2], keepdims = 0>(a0)",
    )


def numpy_softmax(a: np.ndarray) -> np.ndarray:
    """Softmax of each row."""
    exponentials = np.exp(a - a.max(axis=1, keepdims=True))
    exponentials /= exponentials.sum(axis=1, keepdims=True)
    return exponentials


def softmax(name: str, tir: Callable[[], Any], rows: int, columns: int) -> Operator:
    """Softmax of each row of a matrix."""
    return Operator(
        name,
        (Tensor((rows, columns)),),
        Tensor((rows, columns)),
        tir,
        flops=5.0 * rows * columns,
        numpy=numpy_softmax,
        torch=lambda torch, a: torch.softmax(a, 1),
        onnx="y = Softmax<axis = 1>(a0)",
    )


def _scores(name: str, tir: Callable[[], Any], batch: int, length: int, heads: int, size: int) -> Operator:
    """The products of queries and values of an attention, both of (batch, length, heads, size)."""
    return Operator(
        name,
        (Tensor((batch, length, heads, size)),) * 2,
        Tensor((batch, heads, length, length)),
        tir,
        flops=2.0 * batch * heads * length**2 * size,
        numpy=lambda q, v: np.matmul(q.transpose(0, 2, 1, 3), v.transpose(0, 2, 3, 1)),
        torch=lambda torch, q, v: torch.matmul(q.permute(0, 2, 1, 3), v.permute(0, 2, 3, 1)),
        onnx="q = Transpose<perm = [0, 2, 1, 3]>(a0) v = Transpose<perm = [0, 2, 3, 1]>(a1) y = MatMul(q, v)",
    )


_MAKERS: dict[str, Callable[..., Operator]] = {
    "C1D": lambda name, tir, *sizes: _conv(name, tir, 1, *sizes),
    "C2D": lambda name, tir, *sizes: _conv(name, tir, 2, *sizes),
    "C3D": lambda name, tir, *sizes: _conv(name, tir, 3, *sizes),
    "DIL": lambda name, tir, *sizes: _conv(name, tir, 2, *sizes),
    "GRP": lambda name, tir, *sizes: _conv(name, tir, 2, *sizes),
    "CAP": _capsule,
    "DEP": _depthwise,
    "T2D": _transposed,
    "CBR": _scaled_conv,
    "GMM": _batched,
    "NRM": _norm,
    "SFM": softmax,
    "TBG": _scores,
}
