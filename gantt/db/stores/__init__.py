# SPDX-License-Identifier: Apache-2.0
"""The stores that implement ``scheduler.ports``, composed of the rest of ``gantt.db``."""
