"""The projection store: tables, the commit protocol, fenced writes and reads."""
