"""The gradients of some steps in float64, in a small file: norms and projections.

For each gradient of some networks of the zoo, with fixed weights and batches, the file has its norm
and its products with fixed vectors of random signs. So on a GPU's machine nothing has to be
computed in float64, and no kernel of the cpu device compiled. The product of a difference with
random signs has the difference's length as its root mean square; so sixteen numbers in place of two
million tell how far off a gradient is, to about a sixth, and over the gradients of a network to a
few percent. Source: Johnson and Lindenstrauss 1984; signs: Achlioptas 2003. Read next:
`networks.py`, which compares; `python -m benchmarks.gpu.float64` makes the file anew.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

PATH = Path(__file__).with_suffix(".json")
PROJECTIONS = 16
_CHUNK = 1 << 16

Values = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one step has to give.

    Args:
        inputs: hash of all that it begins with: weights, images, labels.
        loss: of the step.
        cpu_error: of the cpu device's gradients, relative, as `error` tells it.
        norms: {gradient: its length}.
        projections: {gradient: its products with vectors of signs}.
    """

    inputs: str
    loss: float
    cpu_error: float
    norms: Mapping[str, float]
    projections: Mapping[str, list[float]]

    def error(self, found: Values) -> float:
        """|all gradients - exact ones| / |exact ones|, estimated."""
        wrong = 0.0
        for name, wanted in self.projections.items():
            off = np.subtract(project(name, found[name]), wanted)
            wrong += float((off**2).mean())
        return (wrong / sum(norm**2 for norm in self.norms.values())) ** 0.5


def answer_of(start: Values, exact: Values, ours: Values) -> Answer:
    """The answer of a step.

    Args:
        start: what it begins with.
        exact: what it gives in float64.
        ours: what it gives on the cpu device.
    """
    names = [name for name in exact if name.startswith("grad:")]
    norms = {name: float(np.linalg.norm(exact[name])) for name in names}
    projections = {name: project(name, exact[name]).tolist() for name in names}
    bare = Answer(hash_of(start), float(exact["loss"]), 0.0, norms, projections)
    return Answer(bare.inputs, bare.loss, bare.error(ours), norms, projections)


def project(name: str, gradient: np.ndarray) -> np.ndarray:
    """Products of a gradient with `PROJECTIONS` vectors of +1 and -1 that its name fixes.

    Cost: 16 multiply-adds for each element.
    """
    flat = np.ascontiguousarray(gradient, np.float64).reshape(-1)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    stream = np.random.PCG64(seed)  # its raw bits are the same in every version of NumPy
    found = np.zeros(PROJECTIONS)
    for at in range(0, flat.size, _CHUNK):
        piece = flat[at : at + _CHUNK]
        words = stream.random_raw(PROJECTIONS * _CHUNK // 64).astype("<u8")
        bits = np.unpackbits(words.view(np.uint8)).reshape(PROJECTIONS, _CHUNK)[:, : piece.size]
        found += 2 * (bits @ piece) - piece.sum()
    return found


def hash_of(values: Values) -> str:
    """The same for the same names, shapes and bits."""
    digest = hashlib.sha256()
    for name in sorted(values):
        array = np.ascontiguousarray(values[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return digest.hexdigest()[:16]


def read_answers(path: Path = PATH) -> dict[str, Answer]:
    """{network: its answer}."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: Answer(**answer) for name, answer in found["answers"].items()}


def main() -> int:
    """Makes the file. Cost: a minute, most of it compiling kernels of the cpu device."""
    # Not at the top: `networks.py` reads this file's answers.
    from benchmarks.gpu.networks import TRUE_TO_FLOAT64, on_cpu

    answers = {}
    for net in TRUE_TO_FLOAT64:
        begin, exact = on_cpu(net, "reference")
        answers[net.name] = asdict(answer_of(begin, exact, on_cpu(net, "cpu")[1]))
    text = json.dumps({"version": 1, "answers": answers}, indent=None, separators=(",", ":"))
    PATH.write_text(text.replace('"projections"', '\n"projections"') + "\n", encoding="utf-8")
    for name, answer in answers.items():
        print(f"{name}: loss {answer['loss']:.6f}, cpu device's error {answer['cpu_error']:.3g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
