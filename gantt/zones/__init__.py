# SPDX-License-Identifier: Apache-2.0
"""Calls to the zones directly below, over HTTP."""
