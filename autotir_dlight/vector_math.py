# SPDX-License-Identifier: Apache-2.0
"""float32 ``exp``, ``sigmoid`` and ``tanh`` as arithmetic that LLVM keeps in vectors.

TVM lowers ``exp`` to a call of the C library, one element at a time: in a vectorised loop of 16 lanes that is 16 calls
and as many moves. Here each becomes a range reduction and a polynomial (the coefficients are those of Moshier's
Cephes library, https://www.netlib.org/cephes/, ``expf.c`` and ``tanhf.c``). Largest error against float64, over
all of the range where the result is normal: 2 ulp for ``exp``, 4 ulp for ``sigmoid`` and ``tanh``. Infinities, NaN, overflow to
infinity and gradual underflow are those of the C library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi

from ._tvm import IRModule, PassContext, ir, module_pass, tirx

# exp(x) = 2**n · exp(r), r = x − n·ln 2 in two parts, |r| ≤ ln 2 / 2.
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# Beyond these the result is infinite, or zero even as a subnormal.
_EXP_MIN, _EXP_MAX = -104.0, 89.0
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# Below this tanh is a polynomial, above it comes from exp; above the second it is 1 in float32.
_TANH_SMALL, _TANH_ONE = 0.625, 9.1


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _bind(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
    """``let name = value in body(name)``, so that ``value`` is evaluated once."""
    var = tirx.Var(name, str(value.ty))
    return tirx.Let(var, value, body(var))


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    total = _f32(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _f32(coefficient)
    return total


def _power_of_two(n: Any) -> Any:
    """2**n for an int32 n in the range of the exponent field."""
    return tirx.reinterpret("float32", (n + tirx.const(127, "int32")) << tirx.const(23, "int32"))


def exp(x: Any) -> Any:
    """``exp(x)`` for a float32 expression."""

    def scaled(r: Any, n: Any) -> Any:
        poly = _horner(r, _EXP) * r * r + r + _f32(1.0)
        half = n >> tirx.const(1, "int32")
        # Two factors, so that 2**n may be subnormal or infinite while each factor is normal.
        return _bind("half", half, lambda h: poly * _power_of_two(h) * _power_of_two(n - h))

    def reduced(x: Any) -> Any:
        n = tirx.floor(x * _f32(_LOG2_E) + _f32(0.5))
        return _bind("n", n, lambda n: _bind("r", x - n * _f32(_LN2_HIGH) - n * _f32(_LN2_LOW), lambda r: _after(r, n)))

    def _after(r: Any, n: Any) -> Any:
        # A NaN has no integer: its exponent does not matter, since r is NaN as well.
        whole = tirx.Cast("int32", tirx.Select(tirx.EQ(n, n), n, _f32(0.0)))
        return _bind("k", whole, lambda k: scaled(r, k))

    def clamped(x: Any) -> Any:
        # Selects, not min and max, let a NaN through.
        low = tirx.Select(x < _f32(_EXP_MIN), _f32(_EXP_MIN), x)
        return _bind("c", tirx.Select(x > _f32(_EXP_MAX), _f32(_EXP_MAX), low), reduced)

    return _bind("x", x, clamped)


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))`` for a float32 expression."""
    return _f32(1.0) / (_f32(1.0) + exp(_f32(0.0) - x))


def tanh(x: Any) -> Any:
    """``tanh(x)`` for a float32 expression."""

    def large(a: Any) -> Any:
        capped = tirx.Select(a > _f32(_TANH_ONE), _f32(_TANH_ONE), a)
        return _f32(1.0) - _f32(2.0) / (exp(capped + capped) + _f32(1.0))

    def branches(x: Any) -> Any:
        square = x * x
        small = _bind("z", square, lambda z: _horner(z, _TANH) * z * x + x)
        size = tirx.Select(x < _f32(0.0), _f32(0.0) - x, x)
        signed = _bind("a", size, lambda a: _bind("t", large(a), lambda t: tirx.Select(x < _f32(0.0), _f32(0.0) - t, t)))
        inside = tirx.And(x < _f32(_TANH_SMALL), x > _f32(-_TANH_SMALL))
        return tirx.Select(inside, small, signed)

    return _bind("x", x, branches)


_REPLACEMENTS: dict[str, Callable[[Any], Any]] = {"exp": exp, "sigmoid": sigmoid, "tanh": tanh}


def _replace(call: Any) -> Any:
    if not isinstance(call.op, ir.Op) or str(call.ty) != "float32":
        return call
    make = _REPLACEMENTS.get(call.op.name.rpartition(".")[2])
    return call if make is None else make(call.args[0])


@module_pass(opt_level=0, name="autotir.VectorMath")
class VectorMath:
    """Replace float32 ``exp``, ``sigmoid`` and ``tanh`` in every TensorIR function by vectorisable arithmetic.

    Runs after scheduling: the schedules see the calls, the code generator does not.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module."""
        updated = {
            var: tvm_ffi.structural_map(func, (ir.Call, _replace)) if isinstance(func, tirx.PrimFunc) else func
            for var, func in mod.functions_items()
        }
        return IRModule(updated, attrs=mod.attrs, global_infos=mod.global_infos)
