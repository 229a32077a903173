# SPDX-License-Identifier: Apache-2.0
"""The operations of the service; they reach the world through ``scheduler.ports``.

Not here: reports for people (``gantt.insights``).
"""
