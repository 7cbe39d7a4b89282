"""The HTTP control plane: behind a key of its own, off without one."""
