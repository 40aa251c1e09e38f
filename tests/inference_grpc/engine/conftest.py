from tests.inference_grpc.engine_fixtures import embedded, make_client, tiny_path

__all__ = ["embedded", "make_client", "tiny_path"]
