"""turnlane runs conversations with language-model agents as durable Temporal workflows."""
