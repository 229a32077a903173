# SPDX-License-Identifier: Apache-2.0
"""Requests that may go down to other zones: evaluated, placed over zones, followed there.

It stands next to the thread that places, which never waits for another zone.
"""
