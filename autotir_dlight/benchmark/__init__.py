# SPDX-License-Identifier: Apache-2.0
"""Whole models side by side: ours, plain TVM, ONNX Runtime and OpenVINO, each in a process of its own."""
