"""The command line: `turnlane VERB`."""

from __future__ import annotations

import gc


def main() -> None:
    """Run the command line and leave the process with its exit code: 0, 1 final, 2 caller, 75 try again."""
    # Imported here, so that asking for the package costs nothing.
    from turnlane.client.cli.app import build_app

    try:
        build_app()()
    finally:
        # The SDK's worker objects must be gone before the interpreter is: see the SDK's issue on shutdown crashes.
        gc.collect()
