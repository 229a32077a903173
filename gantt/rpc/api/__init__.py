# SPDX-License-Identifier: Apache-2.0
"""Our own messages: decode, call the scheduler, encode."""
