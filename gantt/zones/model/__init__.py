# SPDX-License-Identifier: Apache-2.0
"""Trees of zones: the messages between parent and child zones, and the comparison of offers.

A zone is a Gantt with hosts, child zones, or both.  It answers for its own hosts and queries only
its direct child zones.  Nothing here depends on HTTP, a database or a clock.
"""
