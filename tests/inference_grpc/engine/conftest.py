from tests.inference_grpc.engine_fixtures import embedded, hybrid_path, make_client, tiny_path

__all__ = ["embedded", "hybrid_path", "make_client", "tiny_path"]
