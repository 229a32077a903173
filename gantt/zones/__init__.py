# SPDX-License-Identifier: Apache-2.0
"""Zones: schedulers in a tree over HTTP, each with its own database."""
