# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions without multiplying zeros: one product for all phases, then interleave.

With stride ``s`` a result at ``o`` only meets the taps ``t`` with ``t = (o + p) mod s`` (modulo ``s``): its
phase. Taken apart by phase the weight is ``W'[j, ic, phase, oc] = W[phase + s·j]``, and

    Y[n, q, phase, oc]  = sum over j, ic of  X[n, q - j, ic] · W'[j, ic, phase, oc]
    out[n, oc, o]       = Y[n, (o + p) // s, (o + p) % s, oc]

in each dimension: a convolution of stride 1 with ``s`` times the output channels, and a copy. Where the
kernel is as long as the stride, ``j`` has one value and that is a matrix product. TOPI's lowering instead
spreads the input with zeros and multiplies those too, ``s`` times the work in each dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import te, topi

from .._tvm import tirx

# On the function: that it convolves its first parameter, and its second may not be stored otherwise.
TRANSPOSED = "autotir.transposed_convolution"


@dataclass(frozen=True)
class _Axes:
    """The geometry: layouts by their letters, then one entry a spatial dimension."""

    data: str
    kernel: str
    groups: int
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    dilation: tuple[int, ...]
    results: tuple[Any, ...]

    @property
    def spatial(self) -> str:
        return "".join(c for c in self.data if c not in "NC")

    @property
    def phases(self) -> tuple[int, ...]:
        """How many taps each phase has at most: the (dilated) kernel's extent over the stride."""
        extents = [(k - 1) * d + 1 for k, d in zip(self.kernels, self.dilation)]
        return tuple(-(-e // s) for e, s in zip(extents, self.strides))

    def by_phase(self, weight: Any) -> Any:
        """``W'[j.., group, ic, phase.., oc]``, zero where there is no tap; ``j`` counts down."""
        nd = len(self.kernels)
        shape = dict(zip(self.kernel, weight.shape))
        inputs, outputs = shape["I"] // self.groups, shape["O"]

        def value(*at: Any) -> Any:
            turns, (group, channel), rest = at[:nd], at[nd : nd + 2], at[nd + 2 :]
            where = {"I": group * inputs + channel, "O": rest[nd]}
            inside = []
            for d, letter in enumerate(self.spatial):
                tap = rest[d] + self.strides[d] * (self.phases[d] - 1 - turns[d])
                where[letter] = tirx.floordiv(tap, self.dilation[d])
                inside.append(tirx.floormod(tap, self.dilation[d]) == 0)
                inside.append(where[letter] < self.kernels[d])
            load = weight(*(where[letter] for letter in self.kernel))
            return tirx.if_then_else(tirx.all(*inside), load, tirx.const(0, weight.dtype))

        return te.compute((*self.phases, self.groups, inputs, *self.strides, outputs), value, name="by_phase")

    def convolve(self, data: Any, weight: Any, dtype: str) -> Any:
        """The transposed convolution of ``data`` with the weight of :meth:`by_phase`."""
        nd = len(self.kernels)
        shape = dict(zip(self.data, data.shape))
        first = [p // s for p, s in zip(self.before, self.strides)]
        last = [tirx.floordiv(o - 1 + p, s) for o, p, s in zip(self.results, self.before, self.strides)]
        extents = [b - a + 1 for a, b in zip(first, last)]
        inputs, outputs = weight.shape[nd + 1], weight.shape[-1]
        padded = self._pad(data, shape, first, extents, inputs)
        taps = [te.reduce_axis((0, j), name=f"j{d}") for d, j in enumerate(self.phases)]
        channel = te.reduce_axis((0, inputs), name="ic")

        def product(n: Any, *at: Any) -> Any:
            window = [q + j for q, j in zip(at[:nd], taps)]
            group, rest = at[nd], at[nd + 1 :]
            x = padded(n, *window, group, channel).astype(dtype)
            return te.sum(x * weight(*taps, group, channel, *rest).astype(dtype), [*taps, channel])

        result = (shape["N"], *extents, self.groups, *self.strides, outputs)
        return self._interleave(te.compute(result, product, name="phases"), first, shape["N"], outputs)

    def _pad(
        self, data: Any, shape: dict[str, Any], first: list[int], extents: list[Any], inputs: Any
    ) -> Any:
        """``X[n, q.., group, ic]``, with zeros around it as far as the taps reach."""
        nd = len(self.kernels)
        reach = [j - 1 for j in self.phases]
        sides = [shape[letter] for letter in self.spatial]
        moved = [f - r for f, r in zip(first, reach)]

        def value(n: Any, *at: Any) -> Any:
            where = {"N": n, "C": at[nd] * inputs + at[nd + 1]}
            where.update({c: at[d] + moved[d] for d, c in enumerate(self.spatial)})
            inside = [
                condition
                for d, c in enumerate(self.spatial)
                for condition in ([where[c] >= 0] if moved[d] < 0 else []) + [where[c] < sides[d]]
            ]
            load = data(*(where[c] for c in self.data))
            return tirx.if_then_else(tirx.all(*inside), load, tirx.const(0, data.dtype))

        padded = (shape["N"], *(e + r for e, r in zip(extents, reach)), self.groups, inputs)
        return te.compute(padded, value, name="padded")

    def _interleave(self, phases: Any, first: list[int], batch: Any, outputs: Any) -> Any:
        sides = {"N": batch, "C": self.groups * outputs, **dict(zip(self.spatial, self.results))}

        def value(*at: Any) -> Any:
            where = dict(zip(self.data, at))
            moved = [where[c] + p for c, p in zip(self.spatial, self.before)]
            steps = [tirx.floordiv(m, s) - f for m, s, f in zip(moved, self.strides, first)]
            phase = [tirx.floormod(m, s) for m, s in zip(moved, self.strides)]
            group, channel = tirx.floordiv(where["C"], outputs), tirx.floormod(where["C"], outputs)
            return phases(where["N"], *steps, group, *phase, channel)

        return te.compute([sides[c] for c in self.data], value, name="interleaved", tag=topi.tag.INJECTIVE)


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


def _legalise(builder: Any, call: Any) -> Any:
    """The call as two of TensorIR functions: the weight by phase (folded if constant), and the product."""
    attrs = call.attrs
    weight = call.args[1]
    shape = dict(zip(str(attrs.kernel_layout), weight.ty.shape.values))
    spatial = [c for c in str(attrs.data_layout) if c not in "NC"]
    results = dict(zip(str(attrs.data_layout), call.ty.shape.values))
    if str(attrs.out_layout) != str(attrs.data_layout) or any(c not in shape for c in spatial):
        return call
    axes = _Axes(
        str(attrs.data_layout),
        str(attrs.kernel_layout),
        int(attrs.groups),
        _ints([shape[c] for c in spatial]),
        _ints(attrs.strides),
        _ints(attrs.padding)[: len(spatial)],
        _ints(attrs.dilation),
        tuple(results[c] for c in spatial),
    )
    by_phase = builder.emit_te(axes.by_phase, weight, primfunc_name_hint="weight_by_phase")
    return builder.call_te(
        axes.convolve,
        call.args[0],
        by_phase,
        str(call.ty.dtype),
        primfunc_name_hint=str(call.op.name).rpartition(".")[2],
        primfunc_attrs={TRANSPOSED: 1},
    )


# For ``LegalizeOps``: how the transposed convolutions become TensorIR.
TRANSPOSED_CONVOLUTIONS: dict[str, Callable[[Any, Any], Any]] = {
    f"relax.nn.conv{d}d_transpose": _legalise for d in (1, 2, 3)
}
