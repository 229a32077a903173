# SPDX-License-Identifier: Apache-2.0
"""The verbs of the service, one file each; they see the world through ``scheduler.ports``.

Not here: what people read (``gantt.insights``).
"""
