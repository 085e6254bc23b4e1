"""The activities: commits, provider steps and tool calls. Everything of a lane that does I/O."""
