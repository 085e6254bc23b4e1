"""The vocabulary of turnlane: frozen records, commands, transitions, events and errors. No I/O."""
