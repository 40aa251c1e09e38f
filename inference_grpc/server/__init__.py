"""The engine process: gRPC server, receipt journal, metrics, drain. `python -m inference_grpc.server --help`."""
