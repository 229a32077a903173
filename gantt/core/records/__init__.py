# SPDX-License-Identifier: Apache-2.0
"""Records for operators: decisions, the audit trail, history, comparisons of shadow mode.

Nothing here affects a decision.
"""
