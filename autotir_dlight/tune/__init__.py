# SPDX-License-Identifier: Apache-2.0
"""Optional tuning of what the rules choose, never below their default."""
