# SPDX-License-Identifier: Apache-2.0
"""Evolutionary search in one space: which points to measure next.

The points measured so far, the fastest more often, are changed and crossed; a cost model, where there is one,
picks the most promising of many changes. The same seed and the same times give the same search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from .space import Point, Space

# Changed points that the model chooses from, for each that is measured, and the share taken at random.
OFFSPRING = 4
RANDOM_SHARE = 0.25
# Parents: the fastest points of those measured.
PARENTS = 8
CROSSOVER_ODDS = 0.3
# Changes tried for each point wanted before the rest of the space is looked through in order.
ATTEMPTS = 32
# Spaces up to this size are ranked by the model as a whole.
WHOLE = 64

Predict = Callable[[Sequence[Point]], list[float]]


class Search:
    """The state of the search in ``space``. ``start`` are points to begin with, such as those that won for
    other extents; the default is always the first."""

    def __init__(self, space: Space, seed: int, start: Sequence[Point] = ()) -> None:
        self.space = space
        self._random = Random(seed)
        self._start = list(dict.fromkeys([space.default, *start]))
        self.measured: dict[Point, float] = {}
        self._proposed: set[Point] = set()

    @property
    def exhausted(self) -> bool:
        """Whether every point was proposed."""
        return len(self._proposed) >= self.space.size

    @property
    def best(self) -> Point:
        """The fastest point measured, the default where none was."""
        if not self.measured:
            return self.space.default
        return min(self.measured, key=lambda point: (self.measured[point], point))

    def ranked(self, count: int) -> list[Point]:
        """The ``count`` fastest points that ran."""
        ran = [p for p in self.measured if math.isfinite(self.measured[p])]
        return sorted(ran, key=lambda point: (self.measured[point], point))[:count]

    def update(self, point: Point, relative: float) -> None:
        """Tell the time of ``point`` relative to the default's; infinite where it failed."""
        self._proposed.add(point)
        self.measured[point] = relative

    def propose(self, count: int, predict: Predict | None = None) -> list[Point]:
        """Up to ``count`` points that were never proposed, the most promising first."""
        chosen = [p for p in self._start if p not in self._proposed][:count]
        self._proposed.update(chosen)
        left = count - len(chosen)
        if left > 0:
            fresh = self._fresh(left * (OFFSPRING if predict else 1))
            picked = self._pick(fresh, left, predict)
            self._proposed.update(picked)
            chosen += picked
        return chosen

    def _fresh(self, count: int) -> list[Point]:
        """About ``count`` points that were not proposed: changes of the parents, else any."""
        if self.space.size <= WHOLE:
            rest = [p for p in self.space.points() if p not in self._proposed]
            self._random.shuffle(rest)
            return rest
        parents = self.ranked(PARENTS) or [self.space.default]
        found: dict[Point, None] = {}
        for _ in range(count * ATTEMPTS):
            if len(found) >= count:
                return list(found)
            child = self._child(parents)
            if child not in self._proposed:
                found[child] = None
        for point in self.space.points():
            if len(found) >= count:
                break
            if point not in self._proposed:
                found[point] = None
        return list(found)

    def _child(self, parents: Sequence[Point]) -> Point:
        # The square makes the fastest parents the most likely.
        one = parents[int(len(parents) * self._random.random() ** 2)]
        if len(parents) > 1 and self._random.random() < CROSSOVER_ODDS:
            one = self.space.crossover(one, self._random.choice(parents), self._random)
        return self.space.mutate(one, self._random)

    def _pick(self, points: list[Point], count: int, predict: Predict | None) -> list[Point]:
        """``count`` of ``points``: most by the model's word, some at random, so that it can be wrong."""
        if predict is None or len(points) <= count:
            return points[:count]
        lots = int(count * RANDOM_SHARE)
        scores = dict(zip(points, predict(points)))
        by_score = sorted(points, key=lambda p: (-scores[p], p))
        best = by_score[: count - lots]
        rest = [p for p in points if p not in best]
        return best + self._random.sample(rest, min(lots, len(rest)))
