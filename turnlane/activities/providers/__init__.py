"""Adapters to model providers. The SDKs are known in this room only."""
