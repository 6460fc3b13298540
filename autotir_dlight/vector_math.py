# SPDX-License-Identifier: Apache-2.0
"""``exp``, ``log``, ``sigmoid``, ``tanh`` and ``erf`` as arithmetic that LLVM keeps in vectors.

TVM lowers ``exp`` to a call of the C library, one element at a time: in a vectorised loop of 16 lanes that
is 16 calls and as many moves. Here each becomes a range reduction and a polynomial (the coefficients are
those of Moshier's Cephes library, https://www.netlib.org/cephes/, ``expf.c``, ``logf.c`` and ``tanhf.c``;
those of ``erf`` are a minimax fit of our own). Largest error of float32 against float64, over all of the
range where the result is normal: 2 ulp for ``exp`` and ``log``, 4 ulp for ``sigmoid`` and ``tanh``, 5 ulp
for ``erf``. Infinities, NaN, overflow to infinity and gradual underflow are those of the C library.

float16 and bfloat16 are computed in float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import register_op_attr

from ._tvm import IRModule, PassContext, SBlock, Target, ir, module_pass, tirx
from .blocks import rebuilt_block
from .expressions import RECIPROCAL
from .machine import CpuMachine

# exp(x) = 2**n · exp(r), r = x − n·ln 2 in two parts, |r| ≤ ln 2 / 2.
_LOG2_E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
# Beyond these the result is infinite, or zero even as a subnormal.
_EXP_MIN, _EXP_MAX = -104.0, 89.0
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
# Lanes of the AVX-512 instruction VSCALEFPS.
_SCALEF_LANES = 16
_LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
# The bits of the float32 below sqrt(1/2): mantissas are taken from there up to sqrt(2).
_ROOT_HALF_BITS = 0x3F3504F3
_SMALLEST_NORMAL, _TO_NORMAL = 2.0**-126, 2.0**23
# erf(x) = x · P(x²) / Q(x²) for |x| up to the limit, where float32 is within an ulp of 1; coefficients from
# the highest power down, a fit by iteratively reweighted least squares, both scaled so that they round well.
_ERF_LIMIT = 3.8
_ERF_P = (4.27672421e-06, 0.00056964159, 0.00718754018, 0.104005113, 0.370304585, 2.24346471)
_ERF_Q = (7.79649272e-05, 0.00225682301, 0.0291616991, 0.223658457, 0.990912795, 1.9882189)
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


def exp_avx512f(x: Any) -> Any:
    """As :func:`exp`; of 16 lanes with the instruction that scales by a power of two."""
    return _bind("x", x, lambda x: _exp_clamped(x, scaled=_lanes(x) == _SCALEF_LANES))


def _exp_clamped(x: Any, scaled: bool = False) -> Any:
    # minimum and maximum let a NaN through.
    inside = _llvm("minimum", _llvm("maximum", x, _const(x, _EXP_MIN)), _const(x, _EXP_MAX))
    return _bind("c", inside, lambda c: _exp_reduced(c, scaled))


def _exp_reduced(x: Any, scaled: bool) -> Any:
    def with_n(n: Any) -> Any:
        r = x - n * _const(x, _LN2_HIGH) - n * _const(x, _LN2_LOW)
        if scaled:
            return _bind("r", r, lambda r: _scalef(_exp_series(r), n))
        # maxnum makes a number of a NaN, which has no integer; its r is NaN already.
        whole = tirx.Cast(_typed(n, "int32"), _llvm("maxnum", n, _const(n, 2 * _EXP_MIN)))
        return _bind("r", r, lambda r: _bind("k", whole, lambda k: _exp_scaled(r, k)))

    return _bind("n", _llvm("floor", x * _const(x, _LOG2_E) + _const(x, 0.5)), with_n)


def _exp_series(r: Any) -> Any:
    return _horner(r, _EXP) * r * r + r + _const(r, 1.0)


def _scalef(x: Any, n: Any) -> Any:
    """x · 2**n, rounded once, n any whole number: one instruction where the rest takes ten."""
    every, current = tirx.const(-1, "int16"), tirx.const(4, "int32")
    return tirx.call_llvm_pure_intrin(
        str(x.ty), "llvm.x86.avx512.mask.scalef.ps.512", x, n, x, every, current
    )


def _exp_scaled(r: Any, k: Any) -> Any:
    poly = _exp_series(r)
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


def erf(x: Any) -> Any:
    """``erf(x)`` for a float32 expression of any number of lanes."""

    def ratio(x: Any, z: Any) -> Any:
        return x * _horner(z, _ERF_P) / _horner(z, _ERF_Q)

    def clamped(x: Any, limit: float) -> Any:
        return _llvm("minimum", _llvm("maximum", x, _const(x, -limit)), _const(x, limit))

    def inside(x: Any) -> Any:
        return clamped(_bind("z", x * x, lambda z: ratio(x, z)), 1.0)

    return _bind("x", clamped(x, _ERF_LIMIT), inside)


def log(x: Any) -> Any:
    """The natural logarithm of a float32 expression of any number of lanes."""
    return _bind("x", x, _log_special)


def _log_special(x: Any) -> Any:
    zero, infinity = _const(x, 0.0), _const(x, float("inf"))
    not_positive = tirx.Select(x < zero, _const(x, float("nan")), _const(x, float("-inf")))
    # A NaN compares false: it goes through, like infinity.
    return tirx.Select(x < infinity, tirx.Select(x > zero, _log_positive(x), not_positive), x)


def _log_positive(x: Any) -> Any:
    tiny = x < _const(x, _SMALLEST_NORMAL)
    normal = tirx.Select(tiny, x * _const(x, _TO_NORMAL), x)
    shift = tirx.Select(tiny, _const(x, 23.0), _const(x, 0.0))

    def with_bits(bits: Any) -> Any:
        power = (bits - _const(bits, _ROOT_HALF_BITS, "int32")) >> _const(bits, 23, "int32")
        return _bind("e", power, lambda e: _log_reduced(bits, e, shift))

    return _bind("i", tirx.reinterpret(_typed(x, "int32"), normal), with_bits)


def _log_reduced(bits: Any, e: Any, shift: Any) -> Any:
    """log(2**(e − shift) · m), the mantissa m being ``bits`` without the exponent e."""
    mantissa = tirx.reinterpret(_typed(e, "float32"), bits - (e << _const(e, 23, "int32")))
    scale = tirx.Cast(_typed(e, "float32"), e) - shift

    def series(f: Any, n: Any) -> Any:
        z = f * f
        low = f * z * _horner(f, _LOG) + n * _const(f, _LN2_LOW) - _const(f, 0.5) * z
        return f + low + n * _const(f, _LN2_HIGH)

    return _bind("f", mantissa - _const(e, 1.0), lambda f: _bind("n", scale, lambda n: series(f, n)))


_LOWERINGS: dict[str, Callable[[Any], Any]] = {
    "erf": erf,
    "exp": exp,
    "exp_avx512f": exp_avx512f,
    "log": log,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
# Computed in float32: their own range and precision are too small for a polynomial.
_HALVES = ("float16", "bfloat16")
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


def _variant(name: str, machine: CpuMachine | None) -> str:
    """The intrinsic for ``name`` on the machine."""
    special = f"{name}_avx512f"
    return special if special in _LOWERINGS and machine is not None and machine.has("avx512f") else name


def _replace(call: Any, machine: CpuMachine | None) -> Any:
    dtype = str(call.ty)
    if not isinstance(call.op, ir.Op) or dtype not in ("float32", *_HALVES):
        return call
    prefix, _, name = call.op.name.rpartition(".")
    if name not in _LOWERINGS or prefix + "." == _PREFIX:
        return call
    name = _PREFIX + _variant(name, machine)
    if dtype == "float32":
        return tirx.call_intrin("float32", name, *call.args)
    wide = tirx.call_intrin("float32", name, tirx.Cast("float32", call.args[0]))
    return tirx.Cast(dtype, wide)


def _multiply_by_reciprocal(block: Any) -> Any:
    """``a / b`` → ``a * (1 / b)`` in a block that allows it; within 1.5 ulp where ``1 / b`` is normal."""
    if RECIPROCAL not in block.annotations:
        return block

    def product(node: Any) -> Any:
        return node.a * (tirx.const(1.0, str(node.ty)) / node.b) if str(node.ty) == "float32" else node

    body = tvm_ffi.structural_map(block.body, (tirx.Div, product))
    kept = {k: v for k, v in block.annotations.items() if k != RECIPROCAL}
    return rebuilt_block(block, body, annotations=kept)


@module_pass(opt_level=0, name="autotir.VectorMath")
class VectorMath:
    """Replace ``exp``, ``log``, ``sigmoid``, ``tanh`` and ``erf`` of float32, float16 and bfloat16 in every
    TensorIR function by vectorisable arithmetic.

    For llvm targets; knows the instructions of ``Target.current()``. Runs before or after scheduling; the
    arithmetic itself appears when TVM lowers intrinsics.
    """

    def transform_module(self, mod: IRModule, _: PassContext) -> IRModule:
        """The pass: a new module."""
        _register()
        target = Target.current(allow_none=True)
        machine = None if target is None else CpuMachine.from_target(target)
        callbacks = [(ir.Call, lambda call: _replace(call, machine)), (SBlock, _multiply_by_reciprocal)]
        updated = {
            var: tvm_ffi.structural_map(func, callbacks) if isinstance(func, tirx.PrimFunc) else func
            for var, func in mod.functions_items()
        }
        return IRModule(updated, attrs=mod.attrs, global_infos=mod.global_infos)
