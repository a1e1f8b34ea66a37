# SPDX-License-Identifier: Apache-2.0
"""Packages with which tests compare where they are installed."""
import importlib


def package(name):
    """A package, or None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
