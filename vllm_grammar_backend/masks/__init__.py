"""Token masks on their way into vLLM's bitmask."""
