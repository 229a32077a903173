# SPDX-License-Identifier: Apache-2.0
"""A decision explained: structured, in sentences, and redacted for who may not see hosts."""
