# SPDX-License-Identifier: Apache-2.0
"""What the service tells its operator: log lines and metrics."""
