# SPDX-License-Identifier: Apache-2.0
"""The operations of the service, one file each; they use the world through ``scheduler.ports``.

Not here: reports for people (``gantt.insights``).
"""
