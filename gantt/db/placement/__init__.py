# SPDX-License-Identifier: Apache-2.0
"""What Placement's interface reads and writes, beside what hosts say of themselves."""
