"""train: a LeNet learns real digits in half of its memory, with the bits of in-core training.

    python train.py

The step is recorded, planned, verified and timed. Then its list runs over real bytes: the device is
an array of as many bytes as the budget has, and a value that has left it is gone until it comes
back. The same step runs in-core beside it; every loss and every gradient is compared bit for bit.

Grown-up rooms: `ooctrain/execution` and `ooctrain/devices` run the list on three threads, or on
three streams of a GPU, with scratch memory counted; `ooctrain/train.py` is the trainer. The digits
are by E. Alpaydin and C. Kaynak (1998), licence CC BY 4.0. Read next: docs/reading.md, which has
the same paths through the library.
"""

import os
import textwrap
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the products are too small to be shared

import numpy as np
from allocators import Pages, best_fit_extent, in_pages
from planners import belady, keep_all, naive, recompute
from steplist import (
    COMPUTE,
    IN,
    OUT,
    Free,
    Run,
    SwapIn,
    SwapOut,
    ledger,
    makespan,
    simulate,
    verify,
)
from tape import BatchNorm, Conv, CrossEntropy, Linear, MaxPool, ReLU, Tape
from tiles import in_bands

BATCH, BATCHES, EPOCHS, RATE = 128, 12, 3, 0.2
PAGE = 4096  # bytes
LINK = 800  # bytes per us, each way
COLUMNS = 64  # of a picture
DIGITS = Path(__file__).parent / "digits.csv.gz"


# The networks.


def convolution(tape: Tape, number: int, channels: int, outputs: int) -> tuple:
    """A layer: its name, its operation, the names of its parameters."""
    weight = tape.parameter(f"conv{number}.w", outputs, channels, 3, 3)
    return f"conv{number}", Conv(), weight, tape.parameter(f"conv{number}.b", outputs)


def finish(tape: Tape, image: str) -> Tape:
    """Completes a step: a score for each digit, the loss, the gradients, the update."""
    batch, *shape = tape.shapes[image]
    weight = tape.parameter("linear.w", 10, int(np.prod(shape)))
    scores = tape.call("scores", Linear(), image, weight, tape.parameter("linear.b", 10))
    tape.backward(tape.call("loss", CrossEntropy(), scores, tape.input("labels", batch, 10)))
    tape.update(RATE)
    return tape


def lenet() -> Tape:
    """A LeNet with batch norm, for images of 8 x 8 pixels. Its layers are about equally large."""
    tape, channels = Tape(), 1
    image = tape.input("images", BATCH, 1, 8, 8)
    for number, outputs in enumerate((8, 32, 128), start=1):
        name, op, *parameters = convolution(tape, number, channels, outputs)
        image = tape.call(name, op, image, *parameters)
        parameters = [tape.parameter(f"norm{number}.{letter}", outputs) for letter in "wb"]
        image = tape.call(f"norm{number}", BatchNorm(), image, *parameters)
        image = tape.call(f"relu{number}", ReLU(), image)
        image = tape.call(f"pool{number}", MaxPool(), image)
        channels = outputs
    return finish(tape, image)


def two_convolutions(bands: int) -> Tape:
    """Two layers on an image that is larger than all the digits of a batch, cut into bands."""
    tape, layers = Tape(), []
    image = tape.input("images", 1, 1, 128, 128)
    for number, channels in enumerate((1, 8), start=1):
        layers += [convolution(tape, number, channels, 8), (f"relu{number}", ReLU())]
        layers += [(f"pool{number}", MaxPool())]
    image = tape.call("pool3", MaxPool(), in_bands(tape, image, layers, bands))
    return finish(tape, tape.call("pool4", MaxPool(), image))


# The numbers.


def first_parameters(tape: Tape) -> dict[str, np.ndarray]:
    """Weights at random, scales of batch norm 1, all that is added 0."""
    random, numbers = np.random.default_rng(0), {}
    for name in tape.parameters:
        shape = tape.shapes[name]
        if name.endswith(".b"):
            numbers[name] = np.zeros(shape, np.float32)
        elif name.startswith("norm"):
            numbers[name] = np.ones(shape, np.float32)
        else:
            weights = random.normal(0, np.prod(shape[1:]) ** -0.5, shape)
            numbers[name] = weights.astype(np.float32)
    return numbers


def digits() -> list[dict[str, np.ndarray]]:
    """Batches: images with pixels from -1 to 1, and labels as rows with a 1 at the right digit."""
    table = np.loadtxt(DIGITS, delimiter=",", dtype=np.float32)
    images = table[:, :64].reshape(-1, 1, 8, 8) / 8 - 1
    labels = np.eye(10, dtype=np.float32)[table[:, 64].astype(int)]
    places = [slice(first, first + BATCH) for first in range(0, len(table) - BATCH + 1, BATCH)]
    return [{"images": images[place], "labels": labels[place]} for place in places]


# The device.


def execute(tape: Tape, instructions, memory, numbers) -> dict[str, np.ndarray]:
    """Runs a list over real bytes, line by line.

    Args:
        memory: an allocator with the bytes of the device.
        numbers: {parameter or input: array}.

    Returns:
        {name: array} of the loss, the scores, all gradients of parameters, and their successors.
    """
    function = {call.name: call.function for call in tape.calls}
    reads = {call.name: call.reads for call in tape.calls}
    wanted = {"loss", "scores", *tape.lasting.values()}
    wanted |= {tape.gradient[parameter] for parameter in tape.parameters}
    host = {name: numbers[name] for name in tape.inputs}
    address, results = {}, {}

    def put(value, array):
        data = np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint8)
        address[value] = memory.allocate(data.size)
        memory.write(address[value], data)

    def get(value):
        data = memory.read(address[value])[: tape.bytes_of(value)]
        return data.view(np.float32).reshape(tape.shapes[value])

    for parameter in tape.parameters:
        put(parameter, numbers[parameter])
    for instruction in instructions:
        match instruction:
            case Run(value):
                put(value, function[value](*(get(read) for read in reads[value])))
                if value in wanted:
                    results[value] = get(value).copy()
            case SwapOut(value):
                host[value] = get(value).copy()
            case SwapIn(value):
                put(value, host[value])
            case Free(value):
                memory.write(address[value], np.full(tape.bytes_of(value), 255, np.uint8))  # NaN
                memory.free(address.pop(value))
    return results


# The pictures.


def picture(step, instructions, peak: int) -> str:
    """Memory over time, in tenths of `peak` bytes, and below it the three streams."""
    spans = simulate(step, instructions, LINK)
    column_ns = makespan(spans) / COLUMNS
    held = np.full(COLUMNS, ledger(step, [])[0])
    streams = {stream: np.full(COLUMNS, ".") for stream in (COMPUTE, OUT, IN)}
    for instruction, span in zip(instructions, spans, strict=True):
        first, stop = round(span.start / column_ns), round(span.end / column_ns)
        match instruction:
            case Run(value) | SwapIn(value):
                held[first:] += step.size[value]
            case Free(value):
                held[first:] -= step.size[value]
        if span.stream:
            streams[span.stream][first:stop] = "#"
    rows = {}
    for tenths in range(10, 0, -1):
        rows[f"{10 * tenths} %"] = np.where(held > (tenths - 1) * peak / 10, "#", " ")
    return "\n".join(f"{name:>8} |{''.join(row)}|" for name, row in (rows | streams).items())


def compare_planners(step, plan, in_core) -> None:
    """Prints a row for each planner: memory, time, and memory with best fit in place of pages."""
    peak, in_core_ns = max(ledger(step, in_core)), makespan(simulate(step, in_core, LINK))
    plans = {
        "in-core": in_core,
        "recompute": recompute(step, 3 * peak // 4),
        "belady": plan,
        "naive": naive(step),
    }
    print("\n             memory    time   with best fit")
    for name, instructions in plans.items():
        verify(step, instructions, peak)
        memory = max(ledger(step, instructions)) / peak
        time = makespan(simulate(step, instructions, LINK)) / in_core_ns
        holes = best_fit_extent(step, instructions) / peak
        print(f"{name:<10} {memory:>8.1%} {time:>6.2f}x {holes:>10.1%}")


def main() -> None:
    """Shows a plan, compares it with others, and trains by it."""
    tape = lenet()
    step = in_pages(tape.step(), PAGE)
    in_core = keep_all(step)
    peak = max(ledger(step, in_core))
    half = peak // 2 // PAGE * PAGE
    plan = belady(step, half)
    verify(step, plan, half)

    print(f"A step of {len(step.calls)} calls. In-core it holds up to {peak} bytes:\n")
    print(picture(step, in_core, peak))
    print(f"\nBelady's rule makes a list of {len(plan)} lines for half of that. It begins:\n")
    lines = ", ".join(f"{type(line).__name__} {line.value}" for line in plan[:14])
    print(textwrap.indent(textwrap.fill(lines + ", ...", 74), "  "), end="\n\n")
    print(picture(step, plan, peak))
    compare_planners(step, plan, in_core)
    print("\nTwo convolutions on an image of 128 x 128 pixels need at least, in bands:")
    for bands in (1, 2, 4, 8):
        large = two_convolutions(bands).step()
        print(f"{bands:>3} {max(ledger(large, naive(large))):>9} bytes")

    print(f"\nTraining in {half} bytes, and each step in-core as well:")
    *training, last = digits()
    numbers = first_parameters(tape)
    for epoch in range(1, EPOCHS + 1):
        for batch in training[:BATCHES]:
            results = execute(tape, plan, Pages(half, PAGE), numbers | batch)
            expected = execute(tape, in_core, Pages(peak, PAGE), numbers | batch)
            for name in expected:
                assert results[name].tobytes() == expected[name].tobytes(), f"{name} differs"
            numbers = {parameter: results[after] for parameter, after in tape.lasting.items()}
        scores = execute(tape, plan, Pages(half, PAGE), numbers | last)["scores"]
        right = (scores.argmax(1) == last["labels"].argmax(1)).mean()
        print(
            f"  epoch {epoch}: {BATCHES} steps, the same bits; {right:.0%} of new digits are right"
        )


if __name__ == "__main__":
    main()
