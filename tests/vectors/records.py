# SPDX-License-Identifier: Apache-2.0
"""Writer of the one binary format of the logits vectors; README.md states it."""
import struct

import torch

MAGIC, VERSION = b"PLAITVEC", 1


def write_cases(path, vocabulary, cases):
    """Each case: tokens, margins [T], rows as (step, row index, logits [vocabulary])."""
    with open(path, "wb") as out:
        out.write(MAGIC + struct.pack("<III", VERSION, len(cases), vocabulary))
        for case in cases:
            tokens, rows = case["tokens"], case["rows"]
            logits = torch.stack([row[2] for row in rows]).float()
            out.write(struct.pack("<IIf", len(tokens), len(rows), logits.std().item()))
            out.write(struct.pack(f"<{len(tokens)}I", *tokens))
            out.write(case["margins"].float().numpy().astype("<f4").tobytes())
            for step, index, _ in rows:
                out.write(struct.pack("<II", step, index))
            out.write(logits.numpy().astype("<f4").tobytes())
