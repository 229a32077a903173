# SPDX-License-Identifier: Apache-2.0
"""Solver that proves plans of groups: the adapter of OR-tools' CP-SAT, which is an extra.

Nothing else imports OR-tools; without it groups are placed by search only.
"""

import importlib.util


def is_installed() -> bool:
    """Return whether OR-tools is installed; nothing of it is loaded."""
    return importlib.util.find_spec('ortools') is not None
