"""`python -m inference_grpc.tools COMMAND`: quantize, export-gguf, inspect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from inference_grpc.model.errors import ModelFileError
from inference_grpc.model.recipe import read_recipe
from inference_grpc.text.tokenizer import TokenizerError
from inference_grpc.tools.export_gguf import export_gguf
from inference_grpc.tools.inspect import inspect
from inference_grpc.tools.progress import Progress
from inference_grpc.tools.quantize import quantize_folder


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
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "quantize":
            recipe, progress = read_recipe(chosen.recipe), Progress(sys.stderr)
            quantize_folder(chosen.source, chosen.target, recipe, progress, chosen.calibration)
        elif chosen.command == "export-gguf":
            export_gguf(chosen.source, chosen.target, Progress(sys.stderr))
        else:
            sys.stdout.write(inspect(chosen.source, lists_tensors=chosen.tensors))
    except (ModelFileError, TokenizerError) as error:
        sys.stderr.write(f"{chosen.command}: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
