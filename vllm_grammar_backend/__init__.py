"""Pinned structured-output backends for vLLM. Importing this loads neither vLLM nor torch."""

__version__ = "0.1.0"
