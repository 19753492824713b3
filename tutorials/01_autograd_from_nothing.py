# %% [markdown]
# # 01 Autograd from nothing
#
# **Goal:** understand that a backward pass is only *more calls on the same list*. Out-of-core
# training moves the values which those calls read, so we must know exactly which values they read.
# **Prerequisites:** Python, derivatives of products and sums. **Minutes:** 20.
# **Paper:** 000, section 2 (a network is a sequence of functions over variables).
#
# We build a tape in forty lines, train with it, and find the same list inside the library.

# %%
import math

import numpy as np
from lesson import Lesson

import ooctrain as oc

pictures = oc.pictures
lesson = Lesson("01 autograd from nothing")

# %% [markdown]
# ## A tape
#
# Every computation becomes one line on a tape: which function, what it read, what it wrote. That
# is enough to differentiate: walk the lines backwards, and for each one write down the lines that
# compute its gradient. We keep values in a dictionary under names, because in later tutorials the
# *name* outlives the bytes: a variable may be on the device, on the host, or nowhere until it is
# computed again.

# %%
lesson.cell("a tape in forty lines")


class Tape:
    """Lines (function, inputs, output) over named values."""

    def __init__(self):
        self.lines, self.values = [], {}

    def new(self, name, value):
        self.values[name] = value
        return name

    def run(self, function, *inputs):
        """Adds one line, runs it, and returns the output's name."""
        output = f"v{len(self.lines)}"
        self.lines.append((function, inputs, output))
        self.values[output] = FUNCTIONS[function](*(self.values[name] for name in inputs))
        return output


FUNCTIONS = {
    "matmul": lambda a, b: a @ b,
    "matmul_tn": lambda a, b: a.T @ b,
    "matmul_nt": lambda a, b: a @ b.T,
    "relu": lambda a: np.maximum(a, 0),
    "relu_grad": lambda dy, y: dy * (y > 0),
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
}

# The gradient of a line is a list of lines. Each rule gets the tape, the line's inputs and output,
# and the name of the output's gradient; it returns the names of the inputs' gradients. So the first
# row says: for y = a b, the gradient of a is dy b^T ("nt": the second factor is transposed), and
# that of b is a^T dy.
GRADIENTS = {
    "matmul": lambda t, a, b, y, dy: (t.run("matmul_nt", dy, b), t.run("matmul_tn", a, dy)),
    "relu": lambda t, a, y, dy: (t.run("relu_grad", dy, y),),
    "sub": lambda t, a, b, y, dy: (dy, None),
}


def backward(tape, output, seed):
    """Appends the backward lines; returns {name: name of its gradient}."""
    gradient = {output: seed}
    for function, inputs, written in reversed(list(tape.lines)):
        if written not in gradient or function not in GRADIENTS:
            continue
        grads = GRADIENTS[function](tape, *inputs, written, gradient[written])
        for name, grad in zip(inputs, grads, strict=True):
            if grad is not None:
                gradient[name] = tape.run("add", gradient[name], grad) if name in gradient else grad
    return gradient


# %% [markdown]
# ## Predict, then run
#
# Two layers, `relu(x w1) w2`, and the squared error. The forward pass is four lines. **How many
# lines does the tape have after the backward pass?** A matmul needs two, a ReLU one; the
# difference passes its gradient on.

# %%
lesson.cell("train a two-layer network on the tape")
lesson.predict("lines on the tape")

# %%

rng = np.random.default_rng(0)
x = rng.normal(size=(64, 8))
target = np.sin(x.sum(axis=1, keepdims=True))
w1, w2 = rng.normal(size=(8, 32)) / math.sqrt(8), rng.normal(size=(32, 1)) / math.sqrt(32)


def step(w1, w2):
    """One forward and backward pass: the tape, the loss, both gradients."""
    tape = Tape()
    for name, value in (("x", x), ("w1", w1), ("w2", w2), ("target", target)):
        tape.new(name, value)
    hidden = tape.run("relu", tape.run("matmul", "x", "w1"))
    error = tape.run("sub", tape.run("matmul", hidden, "w2"), "target")
    loss = 0.5 * float((tape.values[error] ** 2).mean())
    # The tape begins behind the loss: its derivative by the error is worked out by hand.
    seed = tape.new("seed", tape.values[error] / len(x))
    gradient = backward(tape, error, seed)
    return tape, loss, tape.values[gradient["w1"]], tape.values[gradient["w2"]]


tape, first_loss, dw1, dw2 = step(w1, w2)
lines = len(tape.lines)
lesson.reveal("lines on the tape", lines)
for function, inputs, output in tape.lines:
    print(f"      {output:>3} = {function}({', '.join(inputs)})")

# %% [markdown]
# The surprise is `matmul_nt(.., w1)`: no line reads the gradient of `x`, yet a naive tape computes
# it. A library asks first whether anyone requires it.
#
# ## Is it right? Finite differences
#
# A gradient that was not checked is a guess. We compare with (L(w + h) - L(w - h)) / 2h along one
# random direction: if the gradient is right, the slope along any direction is its dot product with
# the direction.

# %%
lesson.cell("check the gradient along a random direction")
direction, h = rng.normal(size=w1.shape), 1e-6
slope = (step(w1 + h * direction, w2)[1] - step(w1 - h * direction, w2)[1]) / (2 * h)
on_tape = float((dw1 * direction).sum())
print(f"    finite difference {slope:.9f}   tape {on_tape:.9f}")

for _ in range(200):
    _, loss, dw1, dw2 = step(w1, w2)
    w1, w2 = w1 - 0.1 * dw1, w2 - 0.1 * dw2
print(f"    loss {first_loss:.4f} -> {loss:.4f}")

# %% [markdown]
# ## Which values does the backward pass read?
#
# Read the tape: the backward lines read `x`, the weights, the ReLU's *output*, and gradients. The
# ReLU's *input* is not read: it is dead as soon as the ReLU has run. This is why an in-place
# ReLU costs nothing, and why `layers/relu.py` masks with y and not with x. What a backward line
# does read must survive from its forward use until then, and that long wait is what out-of-core
# training makes use of.

# %%
lesson.cell("who waits for the backward pass?")
forward = {output for _, _, output in tape.lines[:4]}
needed = {n for _, inputs, _ in tape.lines[4:] for n in inputs if n in forward}
print(f"    forward values that the backward pass reads: {sorted(needed)} of {sorted(forward)}")

# %% [markdown]
# The picture has one row for each value that the tape writes: the bar begins at the line that
# writes it and ends with the last line that reads it. One forward value, v1, waits through the loss
# until line 6, which masks with it; in a deep network there are hundreds like it, and each holds
# its memory the longer, the earlier it was written.

# %%
lesson.cell("lifetimes")
rows = []
for written, (function, _, output) in enumerate(tape.lines):
    reads = [line for line, (_, inputs, _) in enumerate(tape.lines) if output in inputs]
    # The loss reads v3 at once. A gradient that no line reads is what we wanted: it stays.
    end = max(reads, default=written if written < 4 else len(tape.lines) - 1) + 1
    rows.append((f"{output} {function}", [pictures.Piece(written, end, output, int(written >= 4))]))
lesson.picture(
    "01_lifetimes.svg",
    pictures.strips_svg(
        "From the line that writes a value to the last that reads it",
        rows,
        extent=len(tape.lines),
        axis="line of the tape",
        legend=("forward", "backward"),
    ),
)

# %% [markdown]
# ## The same list in the library
#
# `oc.trace` runs a model in trace mode: the very same tape, but values are only shapes.

# %%
lesson.cell("the library's tape")
model = oc.nn.Sequential(
    oc.nn.Linear(8, 32, bias=False), oc.nn.ReLU(), oc.nn.Linear(32, 1, bias=False)
)
trace = oc.trace(model, (64, 8), loss="mse", optimizer=None)
for call in trace.calls:
    reads = ", ".join(trace.variables[v].name for v in call.ins)
    print(f"      {call.phase:<8} {call.name:<18} reads {reads}")
relu = next(c for c in trace.calls if c.name == "1.fwd")
later_reads = [c.name for c in trace.calls if relu.outs[0] in c.ins and c.phase == "backward"]
before_relu_reads = [c.name for c in trace.calls if relu.ins[0] in c.ins and c.phase == "backward"]

# %% [markdown]
# Puzzles e1 to e3 (`puzzles/`) let you add a product, a convolution and batch norm to
# this tape; each attempt is checked by finite differences.
#
# ## Exercises
#
# `python 01_autograd_from_nothing.py --check 1 ANSWER` checks your answer to the first one.
#
# 1. The loss and the seed are computed from v3. Name a forward value of our tape that no later
#    line reads.
# 2. Add a rule for `add` to `GRADIENTS`: what are the gradients of a and b in y = a + b? (a tuple
#    of names, given that the gradient of y is called "dy")
# 3. The library's trace does not compute the gradient of `x`. How many backward calls does it save
#    here?

# %%
lesson.cell("exercises")
lesson.exercise("1. a dead forward value", lambda a: a in ("v0", "v2"), None)
lesson.exercise("2. the gradients of a + b", lambda a: tuple(a) == ("dy", "dy"), None)
lesson.exercise("3. backward calls saved", lambda a: a == 1, None)

# %%
assert lines == 9, "four forward lines; backward 2 + 1 + 2, and none for the difference"
assert abs(slope - on_tape) < 1e-6 * abs(slope), "the tape's gradient is the slope"
assert loss < 0.5 * first_loss
assert needed == {"v1"}, "only the ReLU's output waits for the backward pass"
assert later_reads, "the library's backward pass reads the output of a ReLU"
assert not before_relu_reads, "and not its input"
assert "0.grad_input" not in {call.name for call in trace.calls}, "nobody needs x's gradient"
print("\nall asserts passed")
