# SPDX-License-Identifier: Apache-2.0
"""Agent of one compute host: builds and deletes guests, keeps its journal, reports."""
