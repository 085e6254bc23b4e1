"""What applications may import to test themselves: a provider that fails on purpose, tools for races."""
