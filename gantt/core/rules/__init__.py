# SPDX-License-Identifier: Apache-2.0
"""The rule language: conditions on hosts, as text or JSON, compiled to array operations."""
