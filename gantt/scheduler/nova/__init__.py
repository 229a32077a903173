# SPDX-License-Identifier: Apache-2.0
"""What the scheduler does about hosts that an unmodified Nova runs."""
