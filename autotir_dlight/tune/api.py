# SPDX-License-Identifier: Apache-2.0
"""The ways to tune: a pass, and functions for tensors, TensorIR modules and Relax models."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._tvm import IRModule, PassContext, ScheduleRule, Target, ir, module_pass, relax, tirx
from ..relax.pipeline import Layout, MarkConstantWeights, graph_passes
from ..rule import Reject
from .cost import CostModel, Features
from .lookup import plan_facts
from .measure import Measurer
from .records import Database
from .space import Space
from .task import extract_tasks
from .tuner import Progress, Result, Tuner, samples_of

TRIALS = 256


@dataclass(frozen=True)
class TuneOptions:
    """How to tune; the same for the pass and the functions.

    Attributes
    ----------
    trials : points to build and time, over all functions
    rules : the rules whose plans are searched; default those of the target
    runner : :func:`~autotir_dlight.tune.local_runner` (default) or :func:`~autotir_dlight.tune.rpc_runner`
    builder : a meta-schedule builder that makes shared libraries, default
        :class:`~autotir_dlight.tune.ExecutorBuilder`
    extents : the values that symbolic extents are measured at, by name (default 1, 16, 128)
    prior : folders of other databases that the cost model learns from and the search begins with
    seed : the same seed and the same times give the same search
    model : use the cost model, which needs the extra ``tune``
    threads : threads to run on, default the usable cores, on a board those of the target
    compiler : the compiler that links candidates, for targets that the system's cannot link for
    on_progress : called after each batch
    """

    trials: int = TRIALS
    rules: Sequence[ScheduleRule] | None = None
    runner: Any = None
    builder: Any = None
    extents: Mapping[str, Sequence[int]] | None = None
    prior: Sequence[str | os.PathLike[str]] = ()
    seed: int = 0
    model: bool = True
    threads: int | None = None
    compiler: str = ""
    on_progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"trials must be at least 1, not {self.trials}")


def tune_tir(
    mod: IRModule | tirx.PrimFunc, target: Target, work_dir: str | os.PathLike[str], **options: Any
) -> Result:
    """Tune the TensorIR functions of ``mod`` into the database in ``work_dir``, which may hold one already.

    ``options`` are those of :class:`TuneOptions`. How often Relax functions of ``mod`` call each function
    is its weight. Raises :class:`~autotir_dlight.tune.MeasureError` where nothing can be built and run.
    """
    chosen = TuneOptions(**options)
    module = IRModule({"main": mod}) if isinstance(mod, tirx.PrimFunc) else mod
    tasks, skipped = extract_tasks(module, target, chosen.rules, chosen.extents)
    prior = [record for folder in chosen.prior for record in Database(folder, read_only=True).records()]
    database = Database(work_dir)
    with Measurer(chosen.builder, chosen.runner, chosen.threads, chosen.compiler) as measurer:
        tuner = Tuner(database, measurer, chosen.seed, chosen.model, prior, chosen.on_progress)
        return tuner.tune(tasks, chosen.trials, skipped)


def tune_te(
    tensors: Sequence[Any], target: Target, work_dir: str | os.PathLike[str], **options: Any
) -> Result:
    """Tune the computation from and to ``tensors`` (of ``tvm.te``); otherwise as :func:`tune_tir`."""
    from tvm import te

    return tune_tir(te.create_prim_func(list(tensors)), target, work_dir, **options)


def tune_relax(
    mod: IRModule,
    params: Mapping[str, Any] | None,
    target: Target,
    work_dir: str | os.PathLike[str],
    layout: Layout = "auto",
    **options: Any,
) -> Result:
    """Tune a Relax model as imported, prepared as :func:`autotir_dlight.pipeline` prepares it.

    ``params`` are constants bound to parameters of ``main`` by name; otherwise as :func:`tune_tir`.
    """
    if params:
        mod = relax.transform.BindParams("main", dict(params))(mod)
    with target:
        fused = ir.transform.Sequential([*graph_passes(layout), MarkConstantWeights()])(mod)
    return tune_tir(fused, target, work_dir, **options)


@module_pass(opt_level=0, name="autotir.TuneSchedules")
class TuneSchedules:
    """Tune the functions of a module into a database; the module itself stays as it is.

    Put it before :class:`autotir_dlight.ApplyDefaultSchedule` with ``database=work_dir``, where the functions
    are fused and, if constants are to be packed, marked.

    Parameters
    ----------
    work_dir : the database's folder
    trials : points to build and time, over all functions
    **options : those of :class:`TuneOptions`

    Afterwards ``result`` is what was found. The current target is tuned for; without one the pass raises
    ``ValueError``.
    """

    def __init__(self, work_dir: str | os.PathLike[str], trials: int = TRIALS, **options: Any) -> None:
        self.work_dir, self.options = Path(work_dir), {"trials": trials, **options}
        TuneOptions(**self.options)
        # There already for the passes that are made after this one and read it.
        Database(work_dir)
        self.result: Result | None = None

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: ``mod``."""
        target = Target.current(allow_none=True)
        if target is None:
            raise ValueError("no target is known: run TuneSchedules inside `with target:`")
        self.result = tune_tir(mod, target, self.work_dir, **self.options)
        return mod


@dataclass(frozen=True)
class Prediction:
    """A plan with its knobs, and by which factor the model thinks that it is faster than the default.

    ``faster`` only orders plans of one function where the model ranks; it is a factor where it regresses.
    """

    rule: str
    plan: str
    knobs: dict[str, int]
    faster: float


def predict(
    func: tirx.PrimFunc,
    target: Target,
    database: str | os.PathLike[str],
    rules: Sequence[ScheduleRule] | None = None,
    limit: int = 64,
) -> list[Prediction]:
    """The first ``limit`` points of a function's space in the order in which a model that learnt from
    ``database`` expects them to be fast. Nothing is measured.

    Raises ``ValueError`` where the function has no space, or the database has too few trials to learn from.
    """
    from itertools import islice
    from math import exp

    model = CostModel(samples_of(Database(database, read_only=True).records("trial")))
    if not model.trained:
        raise ValueError(f"the database has only {len(model.samples)} trials to learn from: tune more")
    space = Space.of(func, target, rules)
    if isinstance(space, Reject):
        raise ValueError(f"the function has no design space: {space.reason}")
    features, points = Features(space), list(islice(space.points(), limit))
    scores = model.predict([features.of(point) for point in points])
    ranked = sorted(zip(scores, points), key=lambda entry: (-entry[0], entry[1]))
    return [
        Prediction(
            space.options[point.plan].rule.name,
            plan_facts(space.options[point.plan])["title"],
            space.values(point),
            exp(score),
        )
        for score, point in ranked
    ]


@contextmanager
def database(work_dir: str | os.PathLike[str]) -> Iterator[Any]:
    """Within it, passes that ask for meta-schedule's current database get the winners in ``work_dir``:
    ``relax.transform.MetaScheduleApplyDatabase`` among them. Gives that database."""
    from .interop import KnobDatabase

    with KnobDatabase(work_dir) as current:
        yield current
