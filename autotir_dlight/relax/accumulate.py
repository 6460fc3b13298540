# SPDX-License-Identifier: Apache-2.0
"""Products of float16 and bfloat16 with sums in float32, rounded once at the end.

Relax adds up in the type of the result unless ``out_dtype`` says otherwise. In bfloat16 a sum of more than
256 equal terms then no longer grows, and no CPU has an instruction for it; PyTorch, ONNX Runtime and OpenVINO
all sum in float32. The conversion of the result fuses into the product's function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._tvm import ir, relax

HALF = ("float16", "bfloat16")
PRODUCTS = (
    "relax.matmul",
    "relax.nn.conv1d",
    "relax.nn.conv2d",
    "relax.nn.conv3d",
)


def _in_float32(call: Any) -> Any:
    """The same call with a result in float32."""
    names = [field.name for field in type(call.attrs).__tvm_ffi_type_info__.fields]
    values = {name: getattr(call.attrs, name) for name in names}
    attrs = ir.make_node(call.attrs.__tvm_ffi_type_info__.type_key, **{**values, "out_dtype": "float32"})
    return relax.Call(call.op, call.args, attrs, call.ty_args)


def _legalise(builder: Any, call: Any) -> Any:
    default: Callable[[Any, Any], Any] = call.op.get_attr("FLegalize")
    if str(call.ty.dtype) not in HALF or any(str(arg.ty.dtype) not in HALF for arg in call.args):
        return default(builder, call)
    wide = builder.emit(default(builder, builder.normalize(_in_float32(call))))
    narrow = builder.normalize(relax.op.astype(wide, str(call.ty.dtype)))
    return narrow.op.get_attr("FLegalize")(builder, narrow)


FLOAT32_SUMS = dict.fromkeys(PRODUCTS, _legalise)
