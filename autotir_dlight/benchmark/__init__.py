# SPDX-License-Identifier: Apache-2.0
"""Operators and whole models side by side with other libraries, each in a process of its own."""
