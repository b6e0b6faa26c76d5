"""
generate.py - write the generated kernels of one instruction set, and the tables that list them.

    generate.py --isa 128|avx2|avx512 --out FOLDER

Writes FOLDER/kernels_ISA.h (the tables, for kernel.c) and N_FILES sources kernels_ISA_N.c.
Each module in MODULES has kernels(isa), which yields lines.Kernel and lines.Helper. To add a
form of code, write such a module and add it to MODULES.
"""
import argparse
from pathlib import Path

import finite
import mojette
import packed
from lines import DECODE_ARGS, ENCODE_ARGS, WIDTH, Kernel

MODULES = (mojette, packed, finite)
N_FILES = 2  # so that two compilers run in parallel; codec/CMakeLists.txt repeats the number


def table(kernels):
    kernels = [kernel for kernel in kernels if isinstance(kernel, Kernel)]
    text = ["/* Written by codec/gen/generate.py at build time. */"]
    for kernel in kernels:
        args = ENCODE_ARGS if kernel.uses is None else DECODE_ARGS
        text.append(f"void {kernel.name}({args});")
    encodes = [f"    {{ {k.kind}, {k.k}, {k.n}, {k.copies:d}, {k.far:d}, {k.row_bytes}, {k.name} }},"
               for k in kernels if k.uses is None]
    decodes = [f"    {{ {k.kind}, {k.k}, {k.n}, {k.row_bytes}, 0x{k.uses:x}, {k.name} }},"
               for k in kernels if k.uses is not None]
    text += [f"enum {{ KERNEL_N_ENCODES = {len(encodes)}, KERNEL_N_DECODES = {len(decodes)} }};"]
    text += ["static const struct kernel_encode kernel_encodes[] = {", *encodes, "};"]
    text += ["static const struct kernel_decode kernel_decodes[] = {", *decodes, "};", ""]
    return "\n".join(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--isa", choices=WIDTH, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kernels = [kernel for module in MODULES for kernel in module.kernels(args.isa)]
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"kernels_{args.isa}.h").write_text(table(kernels))
    files = [['#include "codec/vec.h"', ""] for _ in range(N_FILES)]
    for kernel in sorted(kernels, key=lambda k: len(k.code), reverse=True):
        min(files, key=lambda text: sum(map(len, text))).append(kernel.code)
    for i, text in enumerate(files):
        (args.out / f"kernels_{args.isa}_{i}.c").write_text("\n".join(text))


if __name__ == "__main__":
    main()
