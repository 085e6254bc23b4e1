"""The client: submit inputs, watch answers, control runs, read conversations."""

from turnlane.client.client import Turnlane
from turnlane.client.ticket import Result, Ticket

__all__ = ["Result", "Ticket", "Turnlane"]
