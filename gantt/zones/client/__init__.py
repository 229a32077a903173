# SPDX-License-Identifier: Apache-2.0
"""Calls to the child zones, over HTTP."""
