# SPDX-License-Identifier: Apache-2.0
"""The policies of a group over a host table: levels, what stands, what one member more would break.

Filters and weighers of single requests read them here, and so does joint placing.
"""
