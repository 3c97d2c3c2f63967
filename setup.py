"""Installs the package; what it is and what it needs is in pyproject.toml."""

from setuptools import setup

setup()
