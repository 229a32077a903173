# SPDX-License-Identifier: Apache-2.0
"""What an unmodified Nova sends and means, as values of ours.

Not here: how it is decoded from the wire (``rpc.nova``).
"""
