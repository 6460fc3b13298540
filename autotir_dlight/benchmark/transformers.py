# SPDX-License-Identifier: Apache-2.0
"""Encoders with random weights: ViT-B/16 and BERT-base."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .graph import BATCH, Graph
from .vision import CLASSES, IMAGE

# Both have the same encoder (Devlin et al., "BERT", 2019; Dosovitskiy et al., "An Image Is Worth 16x16
# Words", 2021).
LAYERS, SIZE, HEADS, INNER = 12, 768, 12, 3072
PATCH = 16
VOCABULARY, POSITIONS, SEQUENCE = 30522, 512, 128
_VIT_EPSILON, _BERT_EPSILON = 1e-6, 1e-12
_MASKED = -10000.0
# A residual that is small beside what it is added to keeps values from growing with the depth.
_RESIDUAL_GAIN = 0.25


def vit() -> Any:
    """ViT-B/16: ``image`` (batch, 3, 224, 224) to 1000 numbers, norms before each half of a layer."""
    g = Graph("vit-b16")
    x = _patches(g, g.input("image", (BATCH, *IMAGE)))
    for _ in range(LAYERS):
        x = g.op("Add", _attention(g, g.layer_norm(x, SIZE, _VIT_EPSILON)), x)
        x = g.op("Add", _feed_forward(g, g.layer_norm(x, SIZE, _VIT_EPSILON)), x)
    x = g.layer_norm(x, SIZE, _VIT_EPSILON)
    first = g.op("Gather", x, g.constant(0, "int64"), axis=1)
    return g.model((g.linear(first, SIZE, CLASSES), (BATCH, CLASSES)))


def _patches(g: Graph, image: str) -> str:
    """A vector for each 16 × 16 patch, behind one for the whole image, with positions added."""
    count = (IMAGE[1] // PATCH) * (IMAGE[2] // PATCH)
    fan_in = IMAGE[0] * PATCH**2
    w, b = g.weight(SIZE, IMAGE[0], PATCH, PATCH, fan_in=fan_in), g.weight(SIZE, fan_in=100)
    x = g.op("Conv", image, w, b, kernel_shape=[PATCH] * 2, strides=[PATCH] * 2)
    x = g.op("Transpose", g.reshape(x, 0, SIZE, count), perm=[0, 2, 1])
    batch = g.op("Gather", g.op("Shape", image), g.constant([0], "int64"))
    shape = g.op("Concat", batch, g.constant([1, SIZE], "int64"), axis=0)
    whole = g.op("Expand", g.weight(1, 1, SIZE, fan_in=1), shape)
    return g.op("Add", g.op("Concat", whole, x, axis=1), g.weight(1, count + 1, SIZE, fan_in=100))


def bert() -> Any:
    """BERT-base on 128 tokens: identifiers, mask and types to the last layer and the pooled first token.

    Inputs ``input_ids``, ``attention_mask`` and ``token_type_ids``, int64 of (batch, 128) each.
    """
    g = Graph("bert-base")
    ids, mask, types = (
        g.input(name, (BATCH, SEQUENCE), "int64")
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    words = g.op("Gather", g.weight(VOCABULARY, SIZE, fan_in=1), ids)
    x = g.op("Add", words, g.op("Gather", g.weight(2, SIZE, fan_in=1), types))
    order = g.constant([np.arange(SEQUENCE)], "int64")
    positions = g.op("Gather", g.weight(POSITIONS, SIZE, fan_in=1), order)
    x = g.layer_norm(g.op("Add", x, positions), SIZE, _BERT_EPSILON)
    masked = g.op("Cast", g.op("Unsqueeze", mask, g.constant([1, 2], "int64")), to=1)
    masked = g.op("Mul", g.op("Sub", g.constant(1.0), masked), g.constant(_MASKED))
    for _ in range(LAYERS):
        x = g.layer_norm(g.op("Add", _attention(g, x, masked), x), SIZE, _BERT_EPSILON)
        x = g.layer_norm(g.op("Add", _feed_forward(g, x), x), SIZE, _BERT_EPSILON)
    pooled = g.op("Tanh", g.linear(g.op("Gather", x, g.constant(0, "int64"), axis=1), SIZE, SIZE))
    return g.model((x, (BATCH, SEQUENCE, SIZE)), (pooled, (BATCH, SIZE)))


def _attention(g: Graph, x: str, masked: str = "") -> str:
    """Multi-head attention of ``x`` (batch, length, size) to itself; ``masked`` is added to the scores."""
    query, key, value = (_heads(g, g.linear(x, SIZE, SIZE), perm) for perm in ("query", "key", "value"))
    scores = g.op("Div", g.op("MatMul", query, key), g.constant(math.sqrt(SIZE / HEADS)))
    if masked:
        scores = g.op("Add", scores, masked)
    mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
    merged = g.reshape(g.op("Transpose", mixed, perm=[0, 2, 1, 3]), 0, -1, SIZE)
    return g.linear(merged, SIZE, SIZE, gain=_RESIDUAL_GAIN)


def _heads(g: Graph, x: str, role: str) -> str:
    """(batch, length, size) to (batch, head, length, part), the last two exchanged for keys."""
    perm = [0, 2, 3, 1] if role == "key" else [0, 2, 1, 3]
    return g.op("Transpose", g.reshape(x, 0, -1, HEADS, SIZE // HEADS), perm=perm)


def _feed_forward(g: Graph, x: str) -> str:
    return g.linear(g.gelu(g.linear(x, SIZE, INNER)), INNER, SIZE, gain=_RESIDUAL_GAIN)
