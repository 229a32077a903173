# SPDX-License-Identifier: Apache-2.0
"""Hard rules, a plug-in each: for every host, yes or no."""
