# SPDX-License-Identifier: Apache-2.0
"""Requests of parent zones: their authentication, sealed tokens, and the answers."""
