# SPDX-License-Identifier: Apache-2.0
"""Rows written once, for people and followers: decisions, history, the change feed."""
