"""Views of the management API, one module for each part of the portal. Each act runs the service that the page runs."""
