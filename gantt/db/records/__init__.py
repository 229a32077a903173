# SPDX-License-Identifier: Apache-2.0
"""Rows written once, for operators and readers of the feed: decisions, history, the change feed."""
