# SPDX-License-Identifier: Apache-2.0
"""Nova next to Gantt or on top of it: its messages, notifications, and facts from its API."""
