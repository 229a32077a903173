# SPDX-License-Identifier: Apache-2.0
"""Handlers, a module for each concept of Placement; a handler is ``f(call) -> PlacementAnswer``."""
