"""What a token costs between engine and gateway. `python -m benchmarks.engine_rpc --help`."""
