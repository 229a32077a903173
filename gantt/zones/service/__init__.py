# SPDX-License-Identifier: Apache-2.0
"""Requests that may go to child zones: evaluated, placed over zones, followed there.

This runs in other threads than the scheduling thread, which never waits for another zone.
"""
