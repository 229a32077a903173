# SPDX-License-Identifier: Apache-2.0
"""One module per step, named by what it does; expand before contract."""
