# SPDX-License-Identifier: Apache-2.0
"""A small writer of ONNX models with random weights, for networks that no package on PyPI carries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..extras import require

OPSET = 17
# The dimension that a model leaves open.
BATCH = "batch"
# A ReLU takes half of the variance away.
_RELU_GAIN = math.sqrt(2)


class Graph:
    """A graph under construction: each method adds nodes and returns the name of their result.

    Weights are drawn such that values keep their size from layer to layer (He et al., "Delving Deep into
    Rectifiers", 2015), in the order of the calls, so that the same code gives the same model.
    """

    def __init__(self, name: str, seed: int = 0) -> None:
        self._onnx = require("onnx", "onnx", "writing an ONNX model")
        self._name = name
        self._rng = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._inputs: list[Any] = []

    def input(self, name: str, shape: Sequence[int | str], dtype: str = "float32") -> str:
        """An input of the model."""
        self._inputs.append(self._info(name, shape, dtype))
        return name

    def _info(self, name: str, shape: Sequence[int | str] | None, dtype: str) -> Any:
        helper = self._onnx.helper
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """One node of the standard operator ``kind``."""
        result = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [result], **attributes))
        return result

    def constant(self, value: Any, dtype: str = "float32") -> str:
        """A constant, by its value."""
        name = f"c_{len(self._initializers)}"
        self._initializers.append(self._onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, *shape: int, fan_in: int, gain: float = 1.0) -> str:
        """A random tensor of mean 0 and variance ``gain² / fan_in``."""
        values = self._rng.standard_normal(shape, dtype="float32")
        return self.constant(values * np.float32(gain / math.sqrt(fan_in)))

    def conv(
        self,
        x: str,
        ci: int,
        co: int,
        window: int,
        stride: int = 1,
        groups: int = 1,
        gain: float = _RELU_GAIN,
    ) -> str:
        """A square convolution with bias, padded to keep the extent at stride 1; batch norm is folded in."""
        fan_in = ci // groups * window**2
        w = self.weight(co, ci // groups, window, window, fan_in=fan_in, gain=gain)
        b = self.weight(co, fan_in=100)
        return self.op(
            "Conv",
            x,
            w,
            b,
            group=groups,
            kernel_shape=[window] * 2,
            strides=[stride] * 2,
            pads=[(window - 1) // 2] * 4,
        )

    def linear(self, x: str, ci: int, co: int, gain: float = 1.0) -> str:
        """``x`` × weights + bias over the last axis."""
        product = self.op("MatMul", x, self.weight(ci, co, fan_in=ci, gain=gain))
        return self.op("Add", product, self.weight(co, fan_in=100))

    def layer_norm(self, x: str, size: int, epsilon: float) -> str:
        """A norm of the last axis, with a scale about 1 and a small shift."""
        scale = self.constant(1 + 0.1 * self._rng.standard_normal(size, dtype="float32"))
        return self.op("LayerNormalization", x, scale, self.weight(size, fan_in=100), epsilon=epsilon)

    def gelu(self, x: str) -> str:
        """``x · (1 + erf(x / √2)) / 2``, as exporters write it."""
        erf = self.op("Erf", self.op("Div", x, self.constant(math.sqrt(2))))
        product = self.op("Mul", x, self.op("Add", erf, self.constant(1.0)))
        return self.op("Mul", product, self.constant(0.5))

    def reshape(self, x: str, *shape: int) -> str:
        """``x`` in another shape; 0 keeps the dimension at that place, -1 takes the rest."""
        return self.op("Reshape", x, self.constant(shape, "int64"))

    def flat(self, x: str) -> str:
        """The mean of each channel of an image, (batch, channels)."""
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)

    def model(self, *outputs: tuple[str, Sequence[int | str]]) -> Any:
        """The finished model, whose outputs are given by name and shape, float32 all."""
        helper = self._onnx.helper
        results = [self._info(name, shape, "float32") for name, shape in outputs]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, results, self._initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
