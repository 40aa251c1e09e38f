from tests.inference_grpc.rig import config, manual, rig, start, start_process

__all__ = ["config", "manual", "rig", "start", "start_process"]
