# SPDX-License-Identifier: Apache-2.0
"""The tables, and the migrations from one version of the schema to the next."""
