# SPDX-License-Identifier: Apache-2.0
"""Offers of the own hosts and of the child zones for a request, and the choice of zones to query.

Nothing is claimed here: ``zones.service`` does that with the offers.
"""
