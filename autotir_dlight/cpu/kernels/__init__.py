# SPDX-License-Identifier: Apache-2.0
"""Declared micro-kernels, one file an architecture, and the tensor intrinsics that run them."""
