# SPDX-License-Identifier: Apache-2.0
"""Convolutional networks with random weights: ResNet-50 and MobileNetV3-Large."""

from __future__ import annotations

from typing import Any

from .graph import BATCH, Graph

IMAGE = (3, 224, 224)
CLASSES = 1000
# Blocks and inner channels of each stage (He et al., "Deep Residual Learning", 2016, table 1).
_RESNET_50 = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4
# A residual that is small beside what it is added to keeps values from growing with the depth.
_RESIDUAL_GAIN = 0.25
# Window, expanded and resulting channels, squeeze-and-excitation, hard swish, stride (Howard et al.,
# "Searching for MobileNetV3", 2019, table 1).
_MOBILENET_V3_LARGE = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
_STEM, _LAST_CONV, _HIDDEN = 16, 960, 1280
# Channels are a multiple of that, after squeezing too.
_DIVISOR, _SQUEEZE = 8, 4


def resnet50() -> Any:
    """ResNet-50, the stride in the 3 × 3 convolutions: ``image`` (batch, 3, 224, 224) to 1000 numbers."""
    g = Graph("resnet50")
    x = g.op("Relu", g.conv(g.input("image", (BATCH, *IMAGE)), 3, 64, 7, 2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (blocks, inner) in enumerate(_RESNET_50):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            x = _bottleneck(g, x, channels, inner, stride, shortcut=not block)
            channels = _EXPANSION * inner
    return g.model((g.linear(g.flat(x), channels, CLASSES), (BATCH, CLASSES)))


def _bottleneck(g: Graph, x: str, channels: int, inner: int, stride: int, shortcut: bool) -> str:
    out = _EXPANSION * inner
    y = g.op("Relu", g.conv(x, channels, inner, 1))
    y = g.op("Relu", g.conv(y, inner, inner, 3, stride))
    y = g.conv(y, inner, out, 1, gain=_RESIDUAL_GAIN)
    if shortcut:
        x = g.conv(x, channels, out, 1, stride)
    return g.op("Relu", g.op("Add", y, x))


def mobilenet_v3() -> Any:
    """MobileNetV3-Large: ``image`` (batch, 3, 224, 224) to 1000 numbers."""
    g = Graph("mobilenetv3")
    x = _hard_swish(g, g.conv(g.input("image", (BATCH, *IMAGE)), 3, _STEM, 3, 2))
    channels = _STEM
    for window, expanded, out, squeezes, swish, stride in _MOBILENET_V3_LARGE:
        y = x
        if expanded != channels:
            y = _activation(g, g.conv(y, channels, expanded, 1), swish)
        y = _activation(g, g.conv(y, expanded, expanded, window, stride, groups=expanded), swish)
        if squeezes:
            y = _squeeze_and_excite(g, y, expanded)
        y = g.conv(y, expanded, out, 1, gain=1.0)
        x = g.op("Add", y, x) if stride == 1 and out == channels else y
        channels = out
    x = g.flat(_hard_swish(g, g.conv(x, channels, _LAST_CONV, 1)))
    x = _hard_swish(g, g.linear(x, _LAST_CONV, _HIDDEN))
    return g.model((g.linear(x, _HIDDEN, CLASSES), (BATCH, CLASSES)))


def _activation(g: Graph, x: str, swish: bool) -> str:
    return _hard_swish(g, x) if swish else g.op("Relu", x)


def _hard_swish(g: Graph, x: str) -> str:
    return g.op("HardSwish", x)


def _squeeze_and_excite(g: Graph, x: str, channels: int) -> str:
    squeezed = _divisible(channels / _SQUEEZE)
    mean = g.op("GlobalAveragePool", x)
    inner = g.op("Relu", g.conv(mean, channels, squeezed, 1))
    return g.op("Mul", x, g.op("HardSigmoid", g.conv(inner, squeezed, channels, 1), alpha=1 / 6, beta=0.5))


def _divisible(channels: float) -> int:
    """The nearest multiple of eight that is not below nine tenths."""
    rounded = max(_DIVISOR, int(channels + _DIVISOR / 2) // _DIVISOR * _DIVISOR)
    return rounded + _DIVISOR if rounded < 0.9 * channels else rounded
