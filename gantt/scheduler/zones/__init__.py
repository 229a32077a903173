# SPDX-License-Identifier: Apache-2.0
"""Requests that may go down to other zones: evaluated, placed over zones, followed there.

It works beside the placing thread, which never waits for another zone.
"""
