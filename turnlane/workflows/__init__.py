"""The lane: the workflow that runs one conversation, and the pure reducer it decides with."""
