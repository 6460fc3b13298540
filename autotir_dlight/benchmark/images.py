# SPDX-License-Identifier: Apache-2.0
"""A picture of text for models that read: on noise they answer with numbers too small to compare."""

from __future__ import annotations

import numpy as np

_LETTERS = {
    "E": "##### #.... #.... ####. #.... #.... #####",
    "I": ".###. ..#.. ..#.. ..#.. ..#.. ..#.. .###.",
    "N": "#...# ##..# #.#.# #.#.# #.#.# #..## #...#",
    "O": ".###. #...# #...# #...# #...# #...# .###.",
    "R": "####. #...# #...# ####. #.#.. #..#. #...#",
    "S": ".#### #.... #.... .###. ....# ....# ####.",
    "T": "##### ..#.. ..#.. ..#.. ..#.. ..#.. ..#..",
    " ": "..... ..... ..... ..... ..... ..... .....",
}
_LINE = "TENSOR IR"
# An empty row or column goes around each letter.
_LINE_HEIGHT = 9
_LINE_WIDTH = 7 * len(_LINE)


def text_image(shape: tuple[int, ...]) -> np.ndarray:
    """Dark text on white as float32 of ``shape`` (N, C, H, W): 0 is black, 1 white, the same in all N and C.

    The line of text is as large as the width allows, and repeated down the picture.
    """
    *_, height, width = shape
    scale = max(1, min(width // _LINE_WIDTH, height // _LINE_HEIGHT))
    ink = np.kron(np.concatenate([_glyph(letter) for letter in _LINE], axis=1), np.ones((scale, scale)))
    page = np.ones((height, width), "float32")
    left = max(0, (width - ink.shape[1]) // 2)
    for top in range(0, height - ink.shape[0] + 1, 2 * ink.shape[0]):
        page[top : top + ink.shape[0], left : left + ink.shape[1]] -= ink[:, : width - left]
    return np.broadcast_to(page, shape).copy()


def _glyph(letter: str) -> np.ndarray:
    rows = [[float(dot == "#") for dot in row] for row in _LETTERS[letter].split()]
    return np.pad(np.array(rows, "float32"), 1)
