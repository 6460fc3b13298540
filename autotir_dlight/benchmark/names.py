# SPDX-License-Identifier: Apache-2.0
"""The names of the contenders, apart from the code that runs them so that ``--help`` need not import TVM."""

OURS = "ours"
PLAIN = "plain TVM"
ONNX_RUNTIME = "ONNX Runtime"
OPENVINO = "OpenVINO"
UPSTREAM = "upstream dlight"
NUMPY = "NumPy"
TORCH = "PyTorch"
TORCH_COMPILE = "torch.compile"
# Those that a person may name, on models and on operators.
PUBLIC = (OURS, PLAIN, ONNX_RUNTIME, OPENVINO)
ON_OPERATORS = (OURS, PLAIN, UPSTREAM, NUMPY, TORCH, TORCH_COMPILE, ONNX_RUNTIME)
# Whose output the others are compared with: the first that takes part. Those that add pairwise come first.
REFERENCES = (NUMPY, TORCH, ONNX_RUNTIME, TORCH_COMPILE, PLAIN, UPSTREAM, OURS)
# What the machine needs for an operator's arithmetic or its bytes alone.
BOUND = "bound"
# A compiled model from a file, for checking it.
LIBRARY = "library"
# Computes what ONNX Runtime computes in another order, which shows how far its own answer can be trusted.
UNOPTIMISED = "ONNX Runtime without optimisations"
