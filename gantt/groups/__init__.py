# SPDX-License-Identifier: Apache-2.0
"""Groups planned as a whole: description, plan, reservations, and creation member by member."""
