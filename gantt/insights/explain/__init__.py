# SPDX-License-Identifier: Apache-2.0
"""Decisions explained: structured, in sentences, and redacted for users who may not see hosts."""
