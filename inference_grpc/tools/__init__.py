"""Commands that work on model files: `python -m inference_grpc.tools --help`."""
