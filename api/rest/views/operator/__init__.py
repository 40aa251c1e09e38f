"""Views of the operator's paths, one module per subject: the services of the operator's pages, for programs."""
