# SPDX-License-Identifier: Apache-2.0
"""The table of the operator sweep: small Relax functions of every operator that TVM can legalise.

Each operator comes in at least three shapes: aligned, ragged (odd or prime extents) and with a symbolic
extent. :data:`FAMILIES` holds the cases; :data:`EXCLUDED` says of each other operator why it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.op import grad, image, nn, vision

from .relax_cases import Case, Spec

