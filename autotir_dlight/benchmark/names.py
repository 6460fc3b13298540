# SPDX-License-Identifier: Apache-2.0
"""The names of the contenders, apart from the code that runs them so that ``--help`` need not import TVM."""

OURS = "ours"
PLAIN = "plain TVM"
ONNX_RUNTIME = "ONNX Runtime"
OPENVINO = "OpenVINO"
# Those that a person may name.
PUBLIC = (OURS, PLAIN, ONNX_RUNTIME, OPENVINO)
# A compiled model from a file, for checking it.
LIBRARY = "library"
# Computes what ONNX Runtime computes in another order, which shows how far its own answer can be trusted.
UNOPTIMISED = "ONNX Runtime without optimisations"
