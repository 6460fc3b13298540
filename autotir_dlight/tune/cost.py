# SPDX-License-Identifier: Apache-2.0
"""A model of what a point gains over the default, learnt from what was measured: XGBoost on features.

The features of a point are those of its stores, as meta-schedule extracts them (summed and at their largest),
its plan's knobs and structure, the function's extents and the machine. What is predicted is the logarithm of
the default's time over the point's, so that records of other functions, shapes and machines can be learnt
from as well. Regression or pairwise ranking: whichever orders held-out points better.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._tvm import IRModule
from ..errors import last_line
from ..extras import require
from ..machine import CpuMachine, dtype_bits
from ..rule import machine_of
from .lookup import plan_facts
from .meta_schedule import ArgInfo, MeasureCandidate, PerStoreFeature, ms, without_tensor_intrinsics
from .space import Point, Space

logger = logging.getLogger("autotir_dlight")

# Points that a model is learnt from at the least, and those that the kinds of model are compared from.
FEWEST = 8
FEWEST_TO_COMPARE = 24
FOLDS = 3
ROUNDS = 60
# Knobs and fields of the plan share this many places, by a hash of their names.
PLAN_PLACES = 64
STORE_FEATURES = 164
# One thread: there is little to learn from, and OpenMP's threads and TVM's would spin against each other.
_PARAMS = {"max_depth": 5, "eta": 0.2, "min_child_weight": 1, "verbosity": 0, "seed": 0, "nthread": 1}
_OBJECTIVES = ("reg:squarederror", "rank:pairwise")


@dataclass
class Features:
    """The features of the points of one space; each is worked out once."""

    space: Space
    _known: dict[Point, list[float]] = field(default_factory=dict)
    _context: Any = None

    def of(self, point: Point) -> list[float]:
        """The features of ``point``, always the same number of them."""
        if point not in self._known:
            values = [*self._stores(point), *_plan(self.space, point), *_function(self.space)]
            self._known[point] = [float(f"{v:.5g}") for v in values]
        return self._known[point]

    def _stores(self, point: Point) -> list[float]:
        """Meta-schedule's features; zeros where it has none: for symbolic extents, which it cannot take."""
        none = [0.0] * (2 * STORE_FEATURES)
        if any(it.extent is None for block in self.space.view.blocks for it in block.iters):
            return none
        if self._context is None:
            module = IRModule({"main": self.space.func})
            with without_tensor_intrinsics():
                self._context = ms.TuneContext(mod=module, target=self.space.target)
        candidate = MeasureCandidate(self.space.build(point), ArgInfo.from_prim_func(self.space.func))
        try:
            found = PerStoreFeature().extract_from(self._context, [candidate])[0].numpy()
        except RuntimeError as err:
            # A failed check of the extractor, which does not know every statement that TVM has.
            logger.debug("no per-store features for this function: %s", last_line(err))
            return none
        if not found.size:
            return none
        return [*found.sum(axis=0), *found.max(axis=0)]


def _plan(space: Space, point: Point) -> list[float]:
    """Knobs and structure, each number's logarithm at a place given by its name."""
    places = [0.0] * PLAN_PLACES
    facts = plan_facts(space.options[point.plan])
    named: dict[str, Any] = {**facts["structure"], **space.values(point), f"is {facts['title']}": 1}
    for name, value in named.items():
        if isinstance(value, int):
            # By its whole name a knob is itself, by the last part it is like those of other functions.
            for known in {name, name.rpartition(".")[2]}:
                place = zlib.crc32(known.encode()) % PLAN_PLACES
                places[place] += math.copysign(math.log2(1 + abs(value)), value)
    return places


def _function(space: Space) -> list[float]:
    """The function's size and the machine."""
    volumes = [block.volume() or 0 for block in space.view.blocks]
    extents = [it.extent or 0 for block in space.view.blocks for it in block.iters]
    writes = [w.dtype for block in space.view.blocks for w in block.writes]
    return [
        math.log2(1 + sum(volumes)),
        math.log2(1 + max(volumes, default=0)),
        math.log2(1 + max(extents, default=0)),
        float(len(extents)),
        float(dtype_bits(writes[-1]) if writes else 0),
        *_machine(machine_of(space.target)),
    ]


def _machine(machine: CpuMachine) -> list[float]:
    sizes = (machine.vector_bits, machine.cores, machine.l1_bytes, machine.l2_bytes, machine.l3_bytes)
    return [math.log2(1 + value) for value in sizes]


@dataclass(frozen=True)
class Sample:
    """One measured point: its task, its features, and log(default's time / its time)."""

    group: str
    features: tuple[float, ...]
    gain: float


class CostModel:
    """Learns from samples and predicts gains.

    Raises :class:`~autotir_dlight.errors.MissingExtraError` where XGBoost is not installed.

    Attributes
    ----------
    objective : XGBoost's objective that orders held-out points better
    correlation : Spearman's rank correlation on held-out points, the mean over tasks; ``None`` before there
        are enough samples
    """

    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self._xgboost = require("xgboost", "tune", "the cost model of tuning")
        self.samples: list[Sample] = []
        self.objective = _OBJECTIVES[0]
        self.correlation: float | None = None
        self._booster: Any = None
        self.learn(samples)

    @property
    def trained(self) -> bool:
        """Whether it has seen enough to predict."""
        return self._booster is not None

    def learn(self, samples: Sequence[Sample]) -> None:
        """Add samples and train again on all; those with another number of features are left out."""
        wanted = len(self.samples[0].features) if self.samples else 0
        self.samples += [s for s in samples if len(s.features) == (wanted or len(samples[0].features))]
        if len(self.samples) < FEWEST or not samples:
            return
        if len(self.samples) >= FEWEST_TO_COMPARE:
            scores = {objective: self._held_out(objective) for objective in _OBJECTIVES}
            self.objective = max(scores, key=lambda name: scores[name])
            self.correlation = scores[self.objective]
        self._booster = self._train(self.objective, self.samples)

    def predict(self, features: Sequence[Sequence[float]]) -> list[float]:
        """A number for each point, the larger the faster; for regression log(default's time / its time)."""
        data = self._xgboost.DMatrix(np.asarray(features, dtype="float32"), nthread=1)
        return [float(v) for v in self._booster.predict(data)]

    def _train(self, objective: str, samples: Sequence[Sample]) -> Any:
        ordered = sorted(samples, key=lambda s: s.group)
        data = self._xgboost.DMatrix(
            np.asarray([s.features for s in ordered], dtype="float32"),
            label=_labels(ordered, objective),
            nthread=1,
        )
        if objective.startswith("rank"):
            groups = [s.group for s in ordered]
            data.set_group([groups.count(name) for name in dict.fromkeys(groups)])
        return self._xgboost.train({**_PARAMS, "objective": objective}, data, ROUNDS)

    def _held_out(self, objective: str) -> float:
        """The rank correlation of predictions on folds that were not trained on."""
        pairs: list[tuple[str, float, float]] = []
        for fold in range(FOLDS):
            train = [s for k, s in enumerate(self.samples) if k % FOLDS != fold]
            test = [s for k, s in enumerate(self.samples) if k % FOLDS == fold]
            booster = self._train(objective, train)
            data = self._xgboost.DMatrix(np.asarray([s.features for s in test], dtype="float32"), nthread=1)
            # Scores of different ranking models have no common scale: each fold is a group of its own.
            predicted = booster.predict(data)
            pairs += [(f"{fold} {s.group}", float(p), s.gain) for s, p in zip(test, predicted)]
        return grouped_correlation(pairs)


def _labels(samples: Sequence[Sample], objective: str) -> Any:
    """The gains; for ranking their ranks within the task, since XGBoost wants whole relevances there."""
    if not objective.startswith("rank"):
        return np.asarray([s.gain for s in samples], dtype="float32")
    labels = []
    for sample in samples:
        mates = [s.gain for s in samples if s.group == sample.group]
        below = sum(g < sample.gain for g in mates)
        # At most 31 grades: the gain of a pair grows with two to the power of the grade.
        labels.append(below * 15 // max(len(mates) - 1, 1))
    return np.asarray(labels, dtype="float32")


def grouped_correlation(pairs: Sequence[tuple[str, float, float]]) -> float:
    """Spearman's rank correlation of (group, predicted, measured), the mean over groups of three or more."""
    found = []
    for group in dict.fromkeys(name for name, _, _ in pairs):
        mine = [(p, m) for name, p, m in pairs if name == group]
        if len(mine) >= 3:
            found.append(rank_correlation([p for p, _ in mine], [m for _, m in mine]))
    return sum(found) / len(found) if found else 0.0


def rank_correlation(one: Sequence[float], two: Sequence[float]) -> float:
    """Spearman's rank correlation of two lists; ties share their mean rank; 0 where one is constant."""
    ranks = np.asarray([_ranks(one), _ranks(two)])
    if (ranks.std(axis=1) == 0).any():
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(v < x for v in values) + (sum(v == x for v in values) - 1) / 2 for x in values]
