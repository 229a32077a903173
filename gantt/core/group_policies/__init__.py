# SPDX-License-Identifier: Apache-2.0
"""Policies of a group over a host table: levels, present members, and costs of one more member.

Filters and weighers of single requests read them here, and so does joint placing.
"""
