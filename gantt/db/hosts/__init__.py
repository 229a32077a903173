# SPDX-License-Identifier: Apache-2.0
"""Rows of hosts: registered, reported, renamed, grouped in aggregates."""
