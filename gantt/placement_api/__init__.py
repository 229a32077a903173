# SPDX-License-Identifier: Apache-2.0
"""Placement's interface: its HTTP API over the stores, and transfer between the two."""
