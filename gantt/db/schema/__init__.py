# SPDX-License-Identifier: Apache-2.0
"""The tables, and the steps from one version of the schema to the next."""
