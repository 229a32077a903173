# SPDX-License-Identifier: Apache-2.0
"""What is recorded for people: decisions, the audit trail, history, comparisons of shadow mode.

Nothing here changes a decision.
"""
