"""`python -m inference_grpc.tools COMMAND`: quantize, export-gguf, inspect, capacity."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inference_grpc.config import ConfigError
from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.recipe import read_recipe
from inference_grpc.text.tokenizer import TokenizerError
from inference_grpc.tools.capacity import report
from inference_grpc.tools.export_gguf import export_gguf
from inference_grpc.tools.inspect import inspect
from inference_grpc.tools.progress import Progress
from inference_grpc.tools.quantize import quantize_folder
from kernels.paged_attention.stage import Staging


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m inference_grpc.tools", description="Work on model files.")
    commands = parser.add_subparsers(dest="command", required=True)
    quantize = commands.add_parser("quantize", help="write a folder's matrices in the formats of a recipe")
    quantize.add_argument("source", type=Path, help="a Hugging Face folder")
    quantize.add_argument("target", type=Path, help="the folder to write; must not be there")
    quantize.add_argument("--recipe", default="nvfp4", help="bf16, fp8, nvfp4 or the path of a recipe (TOML)")
    quantize.add_argument("--calibration", type=Path, help="a text; static scales of activations are taken from it")
    export = commands.add_parser("export-gguf", help="write a folder as one GGUF file, bit by bit where GGUF can")
    export.add_argument("source", type=Path, help="a Hugging Face folder with BF16, F16, F32 or NVFP4 matrices")
    export.add_argument("target", type=Path, help="the file to write; must not be there")
    look = commands.add_parser("inspect", help="say what is in a model: shape, formats, sizes, tokenizer")
    look.add_argument("source", type=Path, help="a Hugging Face folder or a GGUF file")
    look.add_argument("--tensors", action="store_true", help="list every matrix")
    room = commands.add_parser("capacity", help="say how many long contexts of the 27B model a staged cache holds")
    room.add_argument("--tokens", type=int, default=32768, help="of a context")
    room.add_argument("--anchors", type=int, default=Staging.anchors, help="first pages, kept in FP8")
    room.add_argument("--recent", type=int, default=Staging.recent, help="last pages, kept in FP8")
    room.add_argument("--envelope-gib", type=float, default=86.4, help="for weights, states and pages")
    room.add_argument("--weights-gb", type=float, default=17.0, help="NVFP4 trunk and head, BF16 embedding")
    room.add_argument("--fp8-weights-gb", type=float, default=28.2, help="FP8 trunk and head, BF16 embedding")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "quantize":
            recipe, progress = read_recipe(chosen.recipe), Progress(sys.stderr)
            quantize_folder(chosen.source, chosen.target, recipe, progress, chosen.calibration)
        elif chosen.command == "export-gguf":
            export_gguf(chosen.source, chosen.target, Progress(sys.stderr))
        elif chosen.command == "capacity":
            asked = {name: value for name, value in vars(chosen).items() if name != "command"}
            sys.stdout.write(report(**asked) + "\n")
        else:
            sys.stdout.write(inspect(chosen.source, lists_tensors=chosen.tensors))
    except (ModelFileError, TokenizerError, ConfigError, ValueError) as error:
        sys.stderr.write(f"{chosen.command}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
