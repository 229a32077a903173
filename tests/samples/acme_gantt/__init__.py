# SPDX-License-Identifier: Apache-2.0
"""The plugins of the page "Write a filter": a package as a site would have it."""
