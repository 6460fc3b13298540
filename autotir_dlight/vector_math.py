# SPDX-License-Identifier: Apache-2.0
"""float32 ``exp``, ``sigmoid`` and ``tanh`` as arithmetic that LLVM keeps in vectors.

TVM lowers ``exp`` to a call of the C library, one element at a time: in a vectorised loop of 16 lanes that
is 16 calls and as many moves. Here each becomes a range reduction and a polynomial (the coefficients are
those of Moshier's Cephes library, https://www.netlib.org/cephes/, ``expf.c`` and ``tanhf.c``). Largest
error against float64, over all of the range where the result is normal: 2 ulp for ``exp``, 4 ulp for
``sigmoid`` and ``tanh``. Infinities, NaN, overflow to infinity and gradual underflow are those of the C
library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import register_op_attr

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


def _bind(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
    """``let name = value in body(name)``, so that ``value`` is evaluated once."""
    var = tirx.Var(name, value.ty)
    return tirx.Let(var, value, body(var))


def _llvm(name: str, *args: Any) -> Any:
    """An LLVM intrinsic of floats, of its first argument's type.

    TVM's analyser writes a bound value out at each use and tries to decide every ``Select`` over it.
    Clamping, rounding and signs by intrinsics use each operand once, which keeps that from growing
    exponentially.
    """
    return tirx.call_llvm_pure_intrin(str(args[0].ty), "llvm." + name, *args)


def _lanes(x: Any) -> int:
    return tvm.DataType(str(x.ty)).lanes


def _const(like: Any, value: float, dtype: str = "float32") -> Any:
    """``value`` in as many lanes as ``like`` has."""
    scalar, lanes = tirx.const(value, dtype), _lanes(like)
    return scalar if lanes == 1 else tirx.Broadcast(scalar, lanes)


def _typed(like: Any, dtype: str) -> str:
    lanes = _lanes(like)
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def _horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    total = _const(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _const(x, coefficient)
    return total


def _power_of_two(n: Any) -> Any:
    """2**n for an int32 n in the range of the exponent field."""
    bits = (n + _const(n, 127, "int32")) << _const(n, 23, "int32")
    return tirx.reinterpret(_typed(n, "float32"), bits)


def exp(x: Any) -> Any:
    """``exp(x)`` for a float32 expression of any number of lanes."""
    return _bind("x", x, _exp_clamped)


def _exp_clamped(x: Any) -> Any:
    # minimum and maximum let a NaN through.
    inside = _llvm("minimum", _llvm("maximum", x, _const(x, _EXP_MIN)), _const(x, _EXP_MAX))
    return _bind("c", inside, _exp_reduced)


def _exp_reduced(x: Any) -> Any:
    def with_n(n: Any) -> Any:
        r = x - n * _const(x, _LN2_HIGH) - n * _const(x, _LN2_LOW)
        # maxnum makes a number of a NaN, which has no integer; its r is NaN already.
        whole = tirx.Cast(_typed(n, "int32"), _llvm("maxnum", n, _const(n, 2 * _EXP_MIN)))
        return _bind("r", r, lambda r: _bind("k", whole, lambda k: _exp_scaled(r, k)))

    return _bind("n", _llvm("floor", x * _const(x, _LOG2_E) + _const(x, 0.5)), with_n)


def _exp_scaled(r: Any, k: Any) -> Any:
    poly = _horner(r, _EXP) * r * r + r + _const(r, 1.0)
    # Two factors, so that 2**k may be subnormal or infinite while each factor is normal.
    half = k >> _const(k, 1, "int32")
    return _bind("h", half, lambda h: poly * _power_of_two(h) * _power_of_two(k - h))


def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))`` for a float32 expression of any number of lanes."""
    one = _const(x, 1.0)
    return one / (one + exp(_const(x, 0.0) - x))


def tanh(x: Any) -> Any:
    """``tanh(x)`` for a float32 expression of any number of lanes."""

    def large(size: Any) -> Any:
        one, two = _const(size, 1.0), _const(size, 2.0)
        capped = _llvm("minimum", size, _const(size, _TANH_ONE))
        return one - two / (exp(capped * two) + one)

    def small(size: Any) -> Any:
        return _bind("z", size * size, lambda z: _horner(z, _TANH) * z * size + size)

    def of_size(size: Any) -> Any:
        return tirx.Select(size < _const(size, _TANH_SMALL), small(size), large(size))

    return _bind("x", x, lambda x: _llvm("copysign", _bind("a", _llvm("fabs", x), of_size), x))


_LOWERINGS: dict[str, Callable[[Any], Any]] = {"exp": exp, "sigmoid": sigmoid, "tanh": tanh}
_PREFIX = "autotir_dlight."


@cache
def _register() -> None:
    """Make the intrinsics known to TVM: pure, vectorisable, and lowered as above at the very end.

    Intrinsics of our own leave those of TVM, and with them the builds of others, as they are. Lowering last
    keeps the nested ``Let`` expressions away from TVM's simplifier, whose time grows exponentially with
    their depth.
    """
    for name, lower in _LOWERINGS.items():
        full = _PREFIX + name
        register_op_attr(full, "TVectorizable", True)
        register_op_attr(full, "TCallEffectKind", tirx.CallEffectKind.Pure.value)
        register_op_attr(full, "llvm.FLowerIntrinsic", _lowering(lower))
        ir.Op.get(full).set_num_inputs(1)


def _lowering(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda call: make(call.args[0])


def _replace(call: Any) -> Any:
    if not isinstance(call.op, ir.Op) or str(call.ty) != "float32":
        return call
    prefix, _, name = call.op.name.rpartition(".")
    if name not in _LOWERINGS or prefix + "." == _PREFIX:
        return call
    return tirx.call_intrin("float32", _PREFIX + name, *call.args)


@module_pass(opt_level=0, name="autotir.VectorMath")
class VectorMath:
    """Replace float32 ``exp``, ``sigmoid`` and ``tanh`` in every TensorIR function by vectorisable
    arithmetic.

    For llvm targets. Runs before or after scheduling; the arithmetic itself appears when TVM lowers
    intrinsics.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module."""
        _register()
        updated = {
            var: tvm_ffi.structural_map(func, (ir.Call, _replace))
            if isinstance(func, tirx.PrimFunc)
            else func
            for var, func in mod.functions_items()
        }
        return IRModule(updated, attrs=mod.attrs, global_infos=mod.global_infos)
