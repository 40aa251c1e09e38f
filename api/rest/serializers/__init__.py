"""JSON shapes of the management API."""
