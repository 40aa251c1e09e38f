from tests.inference_grpc.engine_fixtures import tiny_path

__all__ = ["tiny_path"]
