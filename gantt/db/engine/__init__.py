# SPDX-License-Identifier: Apache-2.0
"""Connections, transactions, retries, and types of columns: SQL without a table of ours."""
