# SPDX-License-Identifier: Apache-2.0
"""What there is for a request: offers of the own hosts and of the zones below, and who is queried.

Nothing is claimed here: that is what the folder above does with the offers.
"""
