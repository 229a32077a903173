# SPDX-License-Identifier: Apache-2.0
"""Zones below one another: what a parent and a child say, and how their offers are compared.

A zone is a Gantt with hosts, children, or both.  It answers for its own hosts and asks only the
zones directly below it.  Nothing here knows HTTP, a database or a clock.
"""
