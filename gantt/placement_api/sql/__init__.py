# SPDX-License-Identifier: Apache-2.0
"""Stores of Placement's interface: its reads and writes, beside the reports of hosts."""
