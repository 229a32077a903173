# SPDX-License-Identifier: Apache-2.0
"""One compute host: builds and deletes guests, keeps its journal, reports."""
