# SPDX-License-Identifier: Apache-2.0
"""Log lines and metrics of the service for its operator."""
