# SPDX-License-Identifier: Apache-2.0
"""The scheduler's handling of hosts that an unmodified Nova runs."""
